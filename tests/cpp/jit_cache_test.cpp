#include "jit/cache.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "base/sha256.hpp"

namespace gpk::jit {
namespace {

namespace fs = std::filesystem;

class JitCache : public testing::Test {
   protected:
    static std::string key(int number) { return Sha256().add(std::to_string(number)).hex(); }
    std::string folder() const { return temporary.path() + "/made/here"; }
    platform::TemporaryFolder temporary;
};

TEST_F(JitCache, KeepsWhatIsWritten) {
    const Cache cache(folder());
    ASSERT_TRUE(cache.usable());
    EXPECT_EQ(cache.read(key(1)), std::nullopt);
    const std::string contents("a\0b", 3);
    EXPECT_TRUE(cache.write(key(1), contents));
    EXPECT_EQ(cache.read(key(1)), contents);
    EXPECT_EQ(Cache(folder()).read(key(1)), contents);
    EXPECT_TRUE(cache.write(key(2), ""));
    EXPECT_EQ(cache.read(key(2)), "");
    struct stat status{};
    ASSERT_EQ(stat(folder().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    ASSERT_EQ(stat(cache.path(key(1)).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(JitCache, DamageIsSeen) {
    const Cache cache(folder());
    const std::string contents(1000, 'x');
    cache.write(key(1), contents);
    const std::string file = cache.path(key(1));
    std::string bytes = platform::read_own_file(file, 1 << 20).value();
    for (const std::size_t at : {std::size_t{0}, std::size_t{500}, bytes.size() - 1}) {
        std::string damaged = bytes;
        damaged[at] ^= 1;
        std::ofstream(file, std::ios::binary) << damaged;
        EXPECT_EQ(cache.read(key(1)), std::nullopt) << at;
    }
    for (const std::size_t size : {std::size_t{0}, std::size_t{31}, bytes.size() - 1}) {
        std::ofstream(file, std::ios::binary) << bytes.substr(0, size);
        EXPECT_EQ(cache.read(key(1)), std::nullopt) << size;
    }
    std::ofstream(file, std::ios::binary) << bytes;
    EXPECT_EQ(cache.read(key(1)), contents);
    fs::copy_file(file, cache.path(key(2)));  // an entry under another's name
    EXPECT_EQ(cache.read(key(2)), std::nullopt);
}

TEST_F(JitCache, OthersFilesAndLinksAreNotRead) {
    const Cache cache(folder());
    cache.write(key(1), "contents");
    chmod(cache.path(key(1)).c_str(), 0666);
    EXPECT_EQ(cache.read(key(1)), std::nullopt);
    chmod(cache.path(key(1)).c_str(), 0600);
    EXPECT_EQ(cache.read(key(1)), "contents");
    fs::rename(cache.path(key(1)), folder() + "/elsewhere");
    fs::create_symlink(folder() + "/elsewhere", cache.path(key(1)));
    EXPECT_EQ(cache.read(key(1)), std::nullopt);
}

TEST_F(JitCache, AFolderThatOthersCanWriteToIsRefused) {
    fs::create_directories(folder());
    for (const unsigned mode : {0777u, 0770u}) {
        chmod(folder().c_str(), mode);
        try {
            Cache cache(folder());
            FAIL() << mode;
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), ErrorKind::unsupported);
            EXPECT_NE(std::string(failure.what()).find("others may write"), std::string::npos)
                << failure.what();
        }
    }
    if (geteuid() == 0) {
        chmod(folder().c_str(), 0700);
        ASSERT_EQ(chown(folder().c_str(), 12345, 12345), 0);
        try {
            Cache cache(folder());
            FAIL();
        } catch (const Error& failure) {
            EXPECT_NE(std::string(failure.what()).find("another user"), std::string::npos) << failure.what();
        }
    }
}

TEST_F(JitCache, NowhereToWriteMeansNoCache) {
    std::ofstream(temporary.path() + "/file") << "";
    for (const std::string& folder : {std::string(), temporary.path() + "/file/below"}) {
        const Cache cache(folder);
        EXPECT_FALSE(cache.usable());
        EXPECT_FALSE(cache.write(key(1), "contents"));
        EXPECT_EQ(cache.read(key(1)), std::nullopt);
    }
}

TEST_F(JitCache, TheLeastRecentlyUsedGo) {
    const Cache cache(folder(), 3500);
    const std::string contents(1000, 'x');
    for (int i = 0; i < 3; ++i) {
        cache.write(key(i), contents);
        usleep(20000);
    }
    EXPECT_TRUE(cache.read(key(0)));  // used last now
    usleep(20000);
    cache.write(key(3), contents);
    EXPECT_TRUE(cache.read(key(0)));
    EXPECT_FALSE(cache.read(key(1)));
    EXPECT_TRUE(cache.read(key(2)));
    EXPECT_TRUE(cache.read(key(3)));
    EXPECT_FALSE(cache.write(key(4), std::string(4000, 'x')));  // larger than all there may be
    EXPECT_TRUE(cache.read(key(3)));
}

TEST_F(JitCache, ProcessesShareIt) {
    constexpr int kProcesses = 4, kRounds = 100;
    const Cache cache(folder(), 1 << 20);
    const auto contents = [](int which) { return std::string(5000, static_cast<char>('a' + which)); };
    std::vector<pid_t> children;
    for (int p = 0; p < kProcesses; ++p) {
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            bool good = true;
            for (int i = 0; i < kRounds && good; ++i) {
                const int which = (i + p) % 3;
                good = cache.write(key(which), contents(which));
                const auto found = cache.read(key(which));
                good = good && found && *found == contents(which);
            }
            _exit(good ? 0 : 1);
        }
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    EXPECT_EQ(platform::file_entries(folder()).size(), 3u);
}

TEST_F(JitCache, TheFolderIsChosenByTheEnvironment) {
    setenv("PYGPUKIT_CACHE_DIR", "/some/where", 1);
    EXPECT_EQ(cache_folder(), "/some/where/jit");
    setenv("PYGPUKIT_CACHE_DIR", "here", 1);
    EXPECT_THROW(cache_folder(), Error);
    unsetenv("PYGPUKIT_CACHE_DIR");
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    EXPECT_EQ(cache_folder(), "/xdg/pygpukit/jit");
    unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace gpk::jit
