// gp.memory: the device's pool, and pools of the user's own. src/pygpukit/memory.py has the public names.
#include <nanobind/stl/optional.h>

#include <map>
#include <memory>
#include <utility>

#include "array/storage.hpp"
#include "base/platform.hpp"
#include "base/utf8.hpp"
#include "bindings/common.hpp"
#include "memory/pool.hpp"
#include "runtime/tenant.hpp"

namespace gpk::python {

namespace {

std::uint64_t next_pool_id = 1;  // under Python's lock

struct BlockHandle {
    std::shared_ptr<Storage> storage;  // null once it is gone
    std::uint64_t pool;
    std::size_t bytes;
    const char* gone = nullptr;  // why
};

struct PyBlock {
    std::shared_ptr<BlockHandle> handle;
};

// A tenant with a stream of its own. What is allocated on the stream, by allocate() or by arrays made inside
// `with`, is the pool's.
class PyPool {
   public:
    PyPool(std::size_t quota, bool eviction, Device& device, QosClass qos, std::string name)
        : device_(device),
          tenant_(Tenant::create({.name = std::move(name), .qos = qos, .memory_limit = quota},
                                 current_stream(device)->tenant())),
          stream_(Stream::create_for(tenant_, device)),
          evicts_(eviction) {
        if (eviction) MemoryPool::of(device).set_eviction(*tenant_, true);
    }
    ~PyPool() {
        if (evicts_) MemoryPool::of(device_).set_eviction(*tenant_, false);
    }
    PyPool(const PyPool&) = delete;
    PyPool& operator=(const PyPool&) = delete;

    const std::shared_ptr<Stream>& stream() const { return stream_; }
    const Tenant& tenant() const { return *tenant_; }
    Device& device() const { return device_; }
    bool evicts() const { return evicts_; }

    // Throws for what no call of a pool allows.
    void check(const char* call) const {
        if (platform::process_id() != process_) {
            throw error(ErrorKind::unsupported, {.call = call,
                                                 .got = "a pool from before this process was forked",
                                                 .fix = "make one in this process"});
        }
        if (current_stream(device_)->capture() != nullptr) {
            throw error(ErrorKind::unsupported,
                        {.call = call,
                         .got = "a graph capture under way",
                         .fix = "use the pool before the capture; a graph has memory of its own"});
        }
    }

    std::shared_ptr<BlockHandle> allocate(std::size_t bytes) {
        auto handle = std::make_shared<BlockHandle>();
        {
            const Unlocked unlocked;
            const StreamScope scope(stream_);
            handle->storage = Storage::allocate(device_, bytes);
        }
        handle->pool = id_;
        handle->bytes = bytes;
        std::erase_if(blocks_, [](const auto& each) { return each.second.expired(); });
        blocks_.emplace(handle.get(), handle);
        return handle;
    }

    // The memory of a block that is this pool's and alive.
    std::shared_ptr<Storage> storage(const char* call, const PyBlock& block) const {
        const BlockHandle& handle = *block.handle;
        if (handle.pool != id_) {
            throw error(ErrorKind::value, {.call = call,
                                           .argument = "block",
                                           .expected = str("a block of pool '", tenant_->name(), "'"),
                                           .got = "one of another pool"});
        }
        if (handle.storage == nullptr) {
            throw error(ErrorKind::value, {.call = call,
                                           .argument = "block",
                                           .expected = "a block that is allocated",
                                           .got = str("one that ", handle.gone)});
        }
        return handle.storage;
    }

    void free(const PyBlock& block) {
        const auto storage = this->storage("MemoryPool.free", block);
        let_go(*block.handle, "was freed");
        blocks_.erase(block.handle.get());
    }

    void clear() {
        for (const auto& [key, each] : std::exchange(blocks_, {})) {
            if (const auto handle = each.lock()) let_go(*handle, "its pool cleared");
        }
    }

    std::size_t live_blocks() const {
        std::size_t count = 0;
        for (const auto& [key, each] : blocks_) count += !each.expired();
        return count;
    }

   private:
    static void let_go(BlockHandle& handle, const char* why) {
        handle.gone = why;
        handle.storage = nullptr;
    }

    Device& device_;
    const std::shared_ptr<Tenant> tenant_;
    const std::shared_ptr<Stream> stream_;
    const bool evicts_;
    const int process_ = platform::process_id();
    const std::uint64_t id_ = next_pool_id++;
    std::map<const BlockHandle*, std::weak_ptr<BlockHandle>> blocks_;  // freed with their Python objects
};

[[noreturn]] void refuse_size(const char* call, const char* argument, const char* expected,
                              nb::handle value) {
    throw error(ErrorKind::value, {.call = call,
                                   .argument = argument,
                                   .expected = expected,
                                   .got = valid_utf8(nb::cast<std::string>(nb::str(value)))});
}

// A number of bytes; more than 64 bits hold is `most`.
std::size_t read_size(const char* call, const char* argument, nb::handle value, std::size_t most) {
    if (!PyLong_Check(value.ptr()) || PyBool_Check(value.ptr())) {
        throw error(ErrorKind::type,
                    {.call = call, .argument = argument, .expected = "an int", .got = kind_of(value)});
    }
    int overflow = 0;
    const long long bytes = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow > 0) return most;
    if (overflow < 0 || bytes < 0) refuse_size(call, argument, "0 or more", value);
    return static_cast<std::size_t>(bytes);
}

void check_range(const char* call, std::size_t offset, std::size_t bytes, std::size_t of) {
    if (offset <= of && bytes <= of - offset) return;
    throw error(ErrorKind::index, {.call = call,
                                   .expected = str("bytes within the block's ", of),
                                   .got = str(bytes, " at offset ", offset)});
}

// Bytes of a Python object, as long as this lives.
class Buffer {
   public:
    Buffer(const char* call, nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) == 0) return;
        PyErr_Clear();
        throw error(ErrorKind::type, {.call = call,
                                      .argument = "data",
                                      .expected = "contiguous bytes (bytes, a NumPy array, a memoryview)",
                                      .got = kind_of(object)});
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    const void* data() const { return view_.buf; }
    std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }

   private:
    Py_buffer view_{};
};

void write(PyPool& pool, const PyBlock& block, nb::handle data, nb::handle offset) {
    constexpr const char* kCall = "MemoryPool.write";
    pool.check(kCall);
    const auto storage = pool.storage(kCall, block);
    const Buffer source(kCall, data);
    const std::size_t at = read_size(kCall, "offset", offset, SIZE_MAX);
    check_range(kCall, at, source.bytes(), block.handle->bytes);
    const Unlocked unlocked;
    const UseScope scope;
    storage->before_write(pool.stream());
    pool.device().launcher().copy_to_device(*pool.stream(), storage->pointer() + at, source.data(),
                                            source.bytes());
    pool.stream()->synchronize();
}

nb::bytes read(PyPool& pool, const PyBlock& block, nb::handle nbytes, nb::handle offset) {
    constexpr const char* kCall = "MemoryPool.read";
    pool.check(kCall);
    const auto storage = pool.storage(kCall, block);
    const std::size_t at = read_size(kCall, "offset", offset, SIZE_MAX);
    check_range(kCall, at, 0, block.handle->bytes);
    const std::size_t bytes =
        nbytes.is_none() ? block.handle->bytes - at : read_size(kCall, "nbytes", nbytes, SIZE_MAX);
    check_range(kCall, at, bytes, block.handle->bytes);
    nb::object out = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
    if (!out.is_valid()) throw nb::python_error();
    {
        char* const to = PyBytes_AS_STRING(out.ptr());
        const Unlocked unlocked;
        const UseScope scope;
        storage->before_read(pool.stream());
        pool.device().launcher().copy_to_host(*pool.stream(), to, storage->pointer() + at, bytes);
        pool.stream()->synchronize();
    }
    return nb::cast<nb::bytes>(out);
}

// Marks the block as used now, on the device. `wait`: until it is there.
void use(PyPool& pool, const char* call, const PyBlock& block, bool wait) {
    pool.check(call);
    const auto storage = pool.storage(call, block);
    const Unlocked unlocked;
    const UseScope scope;
    storage->before_read(pool.stream());
    if (wait) pool.stream()->synchronize();
}

bool evict(PyPool& pool, const PyBlock& block) {
    constexpr const char* kCall = "MemoryPool.evict";
    pool.check(kCall);
    const auto storage = pool.storage(kCall, block);
    if (!pool.evicts()) {
        throw error(
            ErrorKind::unsupported,
            {.call = kCall, .got = "a pool without eviction", .fix = "make it with enable_eviction=True"});
    }
    const Unlocked unlocked;
    return storage->evict();
}

nb::list to_list(const std::vector<BlockInfo>& blocks) {
    nb::list out;
    for (const BlockInfo& block : blocks) {
        nb::dict each;
        each["address"] = block.pointer;
        each["bytes"] = block.bytes;
        each["class_bytes"] = block.class_bytes;
        each["state"] = std::string(block.state);
        each["movable"] = block.movable;
        if (block.tenant.empty()) {
            each["tenant"] = nb::none();
        } else {
            each["tenant"] = valid_utf8(block.tenant);
        }
        each["stream"] = block.stream;
        each["last_use"] = block.last_use;
        out.append(each);
    }
    return out;
}

nb::dict pool_stats(PyPool& pool) {
    std::vector<BlockInfo> blocks;
    {
        const Unlocked unlocked;
        blocks = MemoryPool::of(pool.device()).snapshot(&pool.tenant());
    }
    std::size_t live = 0, evicted_bytes = 0, evicted = 0;
    for (const BlockInfo& block : blocks) {
        live += block.bytes;
        if (block.state != "evicted") continue;
        evicted_bytes += block.class_bytes;
        ++evicted;
    }
    nb::dict out;
    out["quota"] = pool.tenant().memory_limit();
    out["used_bytes"] = pool.tenant().memory_used();
    out["peak_bytes"] = pool.tenant().memory_peak();
    out["live_bytes"] = live;
    out["live_blocks"] = blocks.size();
    out["evicted_bytes"] = evicted_bytes;
    out["evicted_blocks"] = evicted;
    return out;
}

nb::dict device_stats(DeviceArg device) {
    MemoryPool& pool = MemoryPool::of(read_device(device));
    const PoolStats stats = pool.stats();
    nb::dict out, classes;
    out["live_bytes"] = stats.live_bytes;
    out["reserved_bytes"] = stats.reserved_bytes;
    out["cached_bytes"] = stats.cached_bytes;
    out["peak_live_bytes"] = stats.peak_live_bytes;
    out["live_blocks"] = stats.live_blocks;
    out["allocations"] = stats.allocations;
    out["driver_allocations"] = stats.driver_allocations;
    out["limit"] = pool.limit();
    out["evicted_bytes"] = stats.evicted_bytes;
    out["evictions"] = stats.evictions;
    out["reloads"] = stats.reloads;
    out["host_bytes"] = stats.host_bytes;
    out["spilled_bytes"] = stats.spilled_bytes;
    out["disk_bytes"] = stats.disk_bytes;
    for (const ClassInfo& each : pool.classes()) {
        nb::dict counts;
        counts["live"] = each.live_blocks;
        counts["free"] = each.free_blocks;
        classes[nb::int_(each.class_bytes)] = counts;
    }
    out["classes"] = classes;
    return out;
}

// Changes all or, where it throws, nothing.
void set_eviction(bool enabled, nb::handle host_limit, std::optional<std::string> spill_dir,
                  nb::handle disk_limit, DeviceArg device) {
    constexpr const char* kCall = "set_eviction";
    MemoryPool& pool = MemoryPool::of(read_device(device));
    AwayStore& away = pool.evictor().away();
    const auto read = [&](const char* name, nb::handle value) {
        return value.is_none() ? std::nullopt : std::optional(read_bytes(kCall, name, value));
    };
    const std::optional<std::size_t> host_bytes = read("host_limit", host_limit),
                                     disk_bytes = read("disk_limit", disk_limit);
    if (spill_dir) {
        auto file = std::make_unique<platform::ScratchFile>(kCall, "spill_dir", *spill_dir);
        const std::size_t limit = disk_bytes.value_or(file->bytes_left_on_disk() / 2);
        away.set_spill(std::move(file), limit);
    } else if (disk_bytes && !away.set_disk_limit(*disk_bytes)) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "disk_limit",
                                       .expected = "a spill_dir, now or before",
                                       .got = "none"});
    }
    if (host_bytes) away.host().set_limit(*host_bytes);
    pool.set_eviction(enabled);
}

void bind_pool(nb::module_& m) {
    nb::class_<PyBlock>(m, "MemoryBlock", "Memory of a gp.memory.MemoryPool; freed with the object.")
        .def_prop_ro(
            "nbytes", [](const PyBlock& b) { return b.handle->bytes; }, "Its size in bytes, as asked for.")
        .def_prop_ro(
            "alive", [](const PyBlock& b) { return b.handle->storage != nullptr; },
            "Whether it is neither freed nor cleared.")
        .def_prop_ro(
            "on_device",
            [](const PyBlock& b) { return b.handle->storage != nullptr && b.handle->storage->on_device(); },
            "Whether its memory is on the device now: alive and not evicted.");
    nb::class_<PyPool>(
        m, "MemoryPool",
        "Memory of a device with a quota of its own: a tenant of the device's pool, with a stream.\n\n"
        "    pool = gp.memory.MemoryPool(quota='2GiB', enable_eviction=True)\n"
        "    with pool:\n        x = gp.zeros((1024, 1024))     # arrays made inside are the pool's\n"
        "    block = pool.allocate(1 << 20)         # plain memory\n"
        "    pool.write(block, b'hello')")
        .def(
            "__init__",
            [](PyPool* self, nb::handle quota, bool enable_eviction, DeviceArg device, nb::handle qos,
               std::optional<std::string> name) {
                constexpr const char* kCall = "MemoryPool";
                const std::size_t limit = quota.is_none() ? 0 : read_bytes(kCall, "quota", quota);
                if (!quota.is_none() && limit == 0) refuse_size(kCall, "quota", "None or more than 0", quota);
                new (self) PyPool(limit, enable_eviction, read_device(device), read_qos(kCall, qos),
                                  name ? *name : str("pool ", next_pool_id));
            },
            nb::arg("quota").none() = nb::none(), nb::kw_only(), nb::arg("enable_eviction") = false,
            nb::arg("device").none() = nb::none(), nb::arg("qos") = "burstable",
            nb::arg("name").none() = nb::none(),
            "quota: the most device memory in bytes (or '4GiB'); None for no limit but the device's.\n"
            "enable_eviction: over the quota, what was used longest ago goes to pinned host memory and comes "
            "back at its next use. Blocks smaller than the device's granularity (2 MiB on GPUs) stay.\n"
            "qos: 'guaranteed', 'burstable' or 'best_effort': who is evicted first for others.\n\n"
            "Raises InvalidValueError for what these cannot be.")
        .def(
            "allocate",
            [](PyPool& p, nb::handle nbytes) {
                constexpr const char* kCall = "MemoryPool.allocate";
                p.check(kCall);
                const std::size_t bytes = read_size(kCall, "nbytes", nbytes, SIZE_MAX);
                if (bytes == 0) refuse_size(kCall, "nbytes", "1 or more", nbytes);
                return PyBlock{p.allocate(bytes)};
            },
            nb::arg("nbytes").none(), nb::rv_policy::move,
            "Uninitialised memory of `nbytes` bytes.\n\n"
            "Raises InvalidValueError for less than 1, and OutOfMemoryError, with the largest holders and "
            "what could be evicted, where quota or device have no room.")
        .def(
            "free",
            [](PyPool& p, const PyBlock& b) {
                p.check("MemoryPool.free");
                p.free(b);
            },
            nb::arg("block"),
            "Gives a block back. Raises InvalidValueError for one freed before and one of another pool.")
        .def(
            "touch", [](PyPool& p, const PyBlock& b) { use(p, "MemoryPool.touch", b, false); },
            nb::arg("block"), "Marks a block as used now, and starts to bring it back where it is evicted.")
        .def(
            "restore", [](PyPool& p, const PyBlock& b) { use(p, "MemoryPool.restore", b, true); },
            nb::arg("block"), "Brings an evicted block back to the device, and waits for it.")
        .def("evict", &evict, nb::arg("block"),
             "Moves a block to the host now; its next use brings it back. False where it is in use or too "
             "small to move. Raises UnsupportedError for a pool without eviction.")
        .def("write", &write, nb::arg("block"), nb::arg("data").none(), nb::arg("offset") = 0,
             "Copies contiguous bytes (bytes, a NumPy array) into the block, from byte `offset` on; waits. "
             "Raises OutOfBoundsError past the block's end.")
        .def("read", &read, nb::arg("block"), nb::arg("nbytes").none() = nb::none(), nb::arg("offset") = 0,
             "`nbytes` bytes of the block (default: to its end) from byte `offset` on, as bytes; waits. "
             "Raises OutOfBoundsError past the block's end.")
        .def("stats", &pool_stats, nb::sig("def stats(self) -> dict[str, int]"),
             "quota, used_bytes (on the device, with what size classes round up), peak_bytes; live_bytes as "
             "asked for and live_blocks, arrays' too; evicted_bytes and evicted_blocks.")
        .def(
            "snapshot", [](PyPool& p) { return to_list(MemoryPool::of(p.device()).snapshot(&p.tenant())); },
            nb::sig("def snapshot(self) -> list[dict[str, typing.Any]]"),
            "A dict a live block, as gp.memory.snapshot().")
        .def(
            "clear",
            [](PyPool& p) {
                p.check("MemoryPool.clear");
                p.clear();
            },
            "Frees all blocks of allocate(). Arrays stay.")
        .def(
            "__enter__",
            [](nb::handle self) {
                PyPool& pool = nb::cast<PyPool&>(self);
                pool.check("MemoryPool");
                enter_scope(pool.stream());
                return nb::borrow(self);
            },
            nb::sig("def __enter__(self) -> MemoryPool"))
        .def(
            "__exit__", [](PyPool& p, nb::args) { leave_scope("MemoryPool", p.stream()); },
            nb::sig("def __exit__(self, *args: object) -> None"))
        .def("__repr__", [](PyPool& p) {
            const std::size_t limit = p.tenant().memory_limit();
            return valid_utf8(str("MemoryPool('", p.tenant().name(), "': ", p.tenant().memory_used(),
                                  limit != 0 ? str(" of ", limit, " bytes)") : " bytes, no quota)"));
        });
}

}  // namespace

void bind_memory(nb::module_& m) {
    bind_pool(m);
    m.def("_memory_stats", &device_stats, nb::arg("device").none() = nb::none(),
          nb::sig("def _memory_stats(device: Device | str | None = None) -> dict[str, typing.Any]"));
    m.def(
        "_memory_snapshot",
        [](DeviceArg device) { return to_list(MemoryPool::of(read_device(device)).snapshot()); },
        nb::arg("device").none() = nb::none(),
        nb::sig("def _memory_snapshot(device: Device | str | None = None) -> list[dict[str, typing.Any]]"));
    m.def(
        "_memory_trim",
        [](DeviceArg device) {
            MemoryPool& pool = MemoryPool::of(read_device(device));
            const Unlocked unlocked;
            return pool.trim();
        },
        nb::arg("device").none() = nb::none());
    m.def(
        "_memory_set_limit",
        [](nb::handle bytes, DeviceArg device) {
            MemoryPool::of(read_device(device))
                .set_limit(bytes.is_none() ? 0 : read_bytes("set_limit", "nbytes", bytes));
        },
        nb::arg("nbytes").none(), nb::arg("device").none() = nb::none(),
        nb::sig(
            "def _memory_set_limit(nbytes: int | str | None, device: Device | str | None = None) -> None"));
    m.def("_memory_set_eviction", &set_eviction, nb::arg("enabled"), nb::arg("host_limit").none(),
          nb::arg("spill_dir").none(), nb::arg("disk_limit").none(), nb::arg("device").none() = nb::none(),
          nb::sig("def _memory_set_eviction(enabled: bool, host_limit: int | str | None, "
                  "spill_dir: str | None, disk_limit: int | str | None, "
                  "device: Device | str | None = None) -> None"));
}

}  // namespace gpk::python
