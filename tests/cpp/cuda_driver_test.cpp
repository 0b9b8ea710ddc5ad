// CudaDriver over a table of pretend driver calls: what it asks of the driver, and what it makes of the
// answers. The real driver is tested by the whole suite with PYGPUKIT_TEST_DEVICE=cuda.
#include "driver/cuda_driver.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace gpk {
namespace {

using namespace cuda;

// Handles are small numbers, told apart by their tens.
template <class T>
T fake(std::uintptr_t number) {
    return reinterpret_cast<T>(number);
}

struct Pretend {
    int driver_version = 13000;
    std::vector<int> sms = {90};
    CUresult init = CUDA_SUCCESS;
    CUcontext current = nullptr;
    int context_switches = 0;
    int ptx_version = 90, binary_version = 90;
    std::map<std::string, CUresult> failures;  // by call
    std::vector<std::string> calls;
    bool pinned = false, capturing = false;
    int synchronized = 0;
    CUlaunchConfig launched{};
    std::vector<CUlaunchAttribute> attributes;
    std::string params;
    const void* whole = nullptr;  // the struct of a launch that has one
    int retained = 0, modules = 0, graphs = 0, execs = 0;
    int shared_opt_in = 0;
    int virtual_memory = 1;
    std::vector<unsigned> described;  // groups of the last descriptor
    int partitions = 0;

    CUresult call(const char* name) {
        calls.emplace_back(name);
        const auto found = failures.find(name);
        return found == failures.end() ? CUDA_SUCCESS : found->second;
    }
};

Pretend* pretend = nullptr;

#define ANSWER(name) \
    if (const CUresult code = pretend->call(name); code != 0) return code

CudaApi pretend_api() {
    CudaApi api;
    api.cuInit = [](unsigned) { return pretend->init; };
    api.cuDriverGetVersion = [](int* v) { return *v = pretend->driver_version, CUDA_SUCCESS; };
    api.cuGetErrorName = [](CUresult code, const char** name) {
        *name = code == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
                : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                              : "CUDA_ERROR_X";
        return CUDA_SUCCESS;
    };
    api.cuGetErrorString = [](CUresult, const char** text) { return *text = "what it means", CUDA_SUCCESS; };
    api.cuDeviceGetCount = [](int* n) { return *n = static_cast<int>(pretend->sms.size()), CUDA_SUCCESS; };
    api.cuDeviceGet = [](CUdevice* d, int ordinal) { return *d = ordinal, CUDA_SUCCESS; };
    api.cuDeviceGetName = [](char* name, int, CUdevice) {
        return std::strcpy(name, "Pretend GPU"), CUDA_SUCCESS;
    };
    api.cuDeviceGetAttribute = [](int* value, int which, CUdevice d) {
        const int sm = pretend->sms.at(static_cast<std::size_t>(d));
        *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR              ? sm / 10
                 : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR            ? sm % 10
                 : which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT                ? 132
                 : which == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? pretend->virtual_memory
                                                                                    : 0;
        return CUDA_SUCCESS;
    };
    api.cuDeviceGetPCIBusId = [](char* id, int, CUdevice) {
        return std::strcpy(id, "0000:01:00.0"), CUDA_SUCCESS;
    };
    api.cuDeviceTotalMem_v2 = [](std::size_t* n, CUdevice) { return *n = 80ull << 30, CUDA_SUCCESS; };
    api.cuDevicePrimaryCtxRetain = [](CUcontext* c, CUdevice) {
        ANSWER("retain");
        ++pretend->retained;
        return *c = fake<CUcontext>(10), CUDA_SUCCESS;
    };
    api.cuDevicePrimaryCtxRelease_v2 = [](CUdevice) { return --pretend->retained, CUDA_SUCCESS; };
    api.cuCtxGetCurrent = [](CUcontext* c) { return *c = pretend->current, CUDA_SUCCESS; };
    api.cuCtxSetCurrent = [](CUcontext c) {
        ++pretend->context_switches;
        return pretend->current = c, CUDA_SUCCESS;
    };
    api.cuCtxSynchronize = [] { return pretend->call("cuCtxSynchronize"); };
    api.cuCtxGetStreamPriorityRange = [](int* lowest, int* highest) {
        ANSWER("range");
        return *lowest = 0, *highest = -5, CUDA_SUCCESS;
    };
    api.cuMemAlloc_v2 = [](CUdeviceptr* p, std::size_t) {
        ANSWER("alloc");
        return *p = 256, CUDA_SUCCESS;
    };
    api.cuMemFree_v2 = [](CUdeviceptr) { return pretend->call("free"); };
    api.cuMemcpyHtoDAsync_v2 = [](CUdeviceptr, const void*, std::size_t, CUstream) {
        return pretend->call("htod");
    };
    api.cuMemcpyDtoHAsync_v2 = [](void*, CUdeviceptr, std::size_t, CUstream) {
        return pretend->call("dtoh");
    };
    api.cuPointerGetAttributes = [](unsigned, int*, void** values, CUdeviceptr) {
        const unsigned type = pretend->pinned ? CU_MEMORYTYPE_HOST : 0;  // 0: not known to the driver
        std::memcpy(values[0], &type, sizeof(type));
        return CUDA_SUCCESS;
    };
    api.cuStreamSynchronize = [](CUstream) { return ++pretend->synchronized, CUDA_SUCCESS; };
    api.cuStreamIsCapturing = [](CUstream, int* status) {
        return *status = pretend->capturing, CUDA_SUCCESS;
    };
    api.cuStreamQuery = [](CUstream) { return pretend->call("query"); };
    api.cuModuleLoadData = [](CUmodule* m, const void*) {
        ANSWER("load");
        ++pretend->modules;
        return *m = fake<CUmodule>(20), CUDA_SUCCESS;
    };
    api.cuModuleUnload = [](CUmodule) { return --pretend->modules, CUDA_SUCCESS; };
    api.cuModuleGetFunction = [](CUfunction* f, CUmodule, const char*) {
        ANSWER("get");
        return *f = fake<CUfunction>(30), CUDA_SUCCESS;
    };
    api.cuFuncGetAttribute = [](int* value, int which, CUfunction) {
        *value = which == CU_FUNC_ATTRIBUTE_PTX_VERSION      ? pretend->ptx_version
                 : which == CU_FUNC_ATTRIBUTE_BINARY_VERSION ? pretend->binary_version
                                                             : 7;
        return CUDA_SUCCESS;
    };
    api.cuFuncSetAttribute = [](CUfunction, int which, int value) {
        EXPECT_EQ(which, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
        return pretend->shared_opt_in = value, CUDA_SUCCESS;
    };
    api.cuLaunchKernelEx = [](const CUlaunchConfig* config, CUfunction, void** params, void** extra) {
        ANSWER("launch");
        pretend->whole = params == nullptr ? nullptr : params[0];
        EXPECT_TRUE(params == nullptr || extra == nullptr);
        pretend->launched = *config;
        pretend->attributes.assign(config->attrs, config->attrs + config->numAttrs);
        pretend->params.clear();
        if (extra != nullptr) {
            EXPECT_EQ(extra[0], fake<void*>(CU_LAUNCH_PARAM_BUFFER_POINTER));
            EXPECT_EQ(extra[2], fake<void*>(CU_LAUNCH_PARAM_BUFFER_SIZE));
            EXPECT_EQ(extra[4], nullptr);
            pretend->params.assign(static_cast<const char*>(extra[1]), *static_cast<std::size_t*>(extra[3]));
        }
        return CUDA_SUCCESS;
    };
    api.cuMemGetAllocationGranularity = [](std::size_t* n, const CUmemAllocationProp* prop, int option) {
        EXPECT_EQ(prop->type, CU_MEM_ALLOCATION_TYPE_PINNED);
        EXPECT_EQ(option, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        return *n = 2u << 20, CUDA_SUCCESS;
    };
    api.cuMemAddressReserve = [](CUdeviceptr* p, std::size_t, std::size_t, CUdeviceptr, unsigned long long) {
        ANSWER("reserve");
        return *p = 4096, CUDA_SUCCESS;
    };
    api.cuMemAddressFree = [](CUdeviceptr, std::size_t) { return pretend->call("address_free"); };
    api.cuMemCreate = [](CUmemGenericAllocationHandle* h, std::size_t, const CUmemAllocationProp* prop,
                         unsigned long long) {
        ANSWER("create");
        EXPECT_EQ(prop->location.type, CU_MEM_LOCATION_TYPE_DEVICE);
        EXPECT_EQ(prop->location.id, 0);
        return *h = 70, CUDA_SUCCESS;
    };
    api.cuMemRelease = [](CUmemGenericAllocationHandle h) {
        EXPECT_EQ(h, 70u);
        return pretend->call("release");
    };
    api.cuMemMap = [](CUdeviceptr at, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle h,
                      unsigned long long flags) {
        EXPECT_EQ(at, 4096u);
        EXPECT_EQ(bytes, 2u << 20);
        EXPECT_EQ(offset + flags, 0u);
        EXPECT_EQ(h, 70u);
        return pretend->call("map");
    };
    api.cuMemSetAccess = [](CUdeviceptr, std::size_t, const CUmemAccessDesc* desc, std::size_t count) {
        EXPECT_EQ(desc->flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        EXPECT_EQ(desc->location.type, CU_MEM_LOCATION_TYPE_DEVICE);
        EXPECT_EQ(count, 1u);
        return pretend->call("access");
    };
    api.cuMemUnmap = [](CUdeviceptr, std::size_t) { return pretend->call("unmap"); };
    api.cuDeviceGetDevResource = [](CUdevice, CUdevResource* all, int type) {
        ANSWER("resource");
        return all->type = type, all->sm.smCount = 132, CUDA_SUCCESS;
    };
    // As an H100 splits: 16 groups of 8 SMs; each carries its number in the driver's own bytes.
    api.cuDevSmResourceSplitByCount = [](CUdevResource* result, unsigned* groups, const CUdevResource* all,
                                         CUdevResource*, unsigned flags, unsigned least) {
        ANSWER("split");
        EXPECT_EQ(all->sm.smCount, 132u);
        EXPECT_EQ(flags, 0u);
        EXPECT_EQ(least, 1u);
        if (result == nullptr) return *groups = 16, CUDA_SUCCESS;
        EXPECT_EQ(*groups, 16u);
        for (unsigned i = 0; i < *groups; ++i) {
            result[i].sm.smCount = 8;
            result[i].internal_padding[0] = static_cast<unsigned char>(i);
        }
        return CUDA_SUCCESS;
    };
    api.cuDevResourceGenerateDesc = [](CUdevResourceDesc* desc, CUdevResource* groups, unsigned count) {
        ANSWER("describe");
        pretend->described.clear();
        for (unsigned i = 0; i < count; ++i) pretend->described.push_back(groups[i].internal_padding[0]);
        return *desc = fake<CUdevResourceDesc>(80), CUDA_SUCCESS;
    };
    api.cuGreenCtxCreate = [](CUgreenCtx* c, CUdevResourceDesc desc, CUdevice, unsigned flags) {
        ANSWER("green");
        EXPECT_EQ(desc, fake<CUdevResourceDesc>(80));
        EXPECT_EQ(flags, CU_GREEN_CTX_DEFAULT_STREAM);
        ++pretend->partitions;
        return *c = fake<CUgreenCtx>(90), CUDA_SUCCESS;
    };
    api.cuGreenCtxDestroy = [](CUgreenCtx c) {
        EXPECT_EQ(c, fake<CUgreenCtx>(90));
        return --pretend->partitions, CUDA_SUCCESS;
    };
    api.cuGreenCtxStreamCreate = [](CUstream* s, CUgreenCtx c, unsigned flags, int priority) {
        ANSWER("green_stream");
        EXPECT_EQ(c, fake<CUgreenCtx>(90));
        EXPECT_EQ(flags, CU_STREAM_NON_BLOCKING);
        return *s = fake<CUstream>(static_cast<std::uintptr_t>(100 - priority)), CUDA_SUCCESS;
    };
    api.cuStreamBeginCapture_v2 = [](CUstream, int mode) {
        EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
        return CUDA_SUCCESS;
    };
    api.cuStreamEndCapture = [](CUstream, CUgraph* g) {
        ANSWER("end");
        ++pretend->graphs;
        return *g = fake<CUgraph>(40), CUDA_SUCCESS;
    };
    api.cuGraphGetNodes = [](CUgraph, CUgraphNode*, std::size_t* n) { return *n = 3, CUDA_SUCCESS; };
    api.cuGraphInstantiateWithFlags = [](CUgraphExec* e, CUgraph, unsigned long long) {
        ANSWER("instantiate");
        ++pretend->execs;
        return *e = fake<CUgraphExec>(50), CUDA_SUCCESS;
    };
    api.cuGraphLaunch = [](CUgraphExec, CUstream) { return pretend->call("graph_launch"); };
    api.cuGraphExecDestroy = [](CUgraphExec) { return --pretend->execs, CUDA_SUCCESS; };
    api.cuGraphDestroy = [](CUgraph) { return --pretend->graphs, CUDA_SUCCESS; };
    return api;
}

class CudaDriverTest : public testing::Test {
   protected:
    CudaDriverTest() { pretend = &state; }
    ~CudaDriverTest() override { pretend = nullptr; }
    std::unique_ptr<Driver> driver() { return make_cuda_driver(api, 0); }

    template <class Call>
    std::string message(ErrorKind kind, Call&& call) {
        try {
            call();
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), kind) << failure.what();
            return failure.what();
        }
        ADD_FAILURE() << "nothing was thrown";
        return {};
    }

    Pretend state;
    CudaApi api = pretend_api();
    const unsigned char bytes[8] = {};
    Image image{bytes, sizeof(bytes)};
    KernelDef def{.name = "kernel", .image = &image, .waits_for_predecessor = true};
    const StreamHandle stream = fake<StreamHandle>(60);
};

TEST_F(CudaDriverTest, WhyThereIsNoGpu) {
    state.driver_version = 11040;
    CudaAvailability found = examine_cuda(api);
    EXPECT_TRUE(found.ordinals.empty());
    EXPECT_NE(found.reason.find("CUDA driver too old"), std::string::npos) << found.reason;
    EXPECT_NE(found.reason.find("11.4"), std::string::npos) << found.reason;
    EXPECT_NE(found.reason.find("12.0"), std::string::npos) << found.reason;

    state.driver_version = 12000;
    state.init = CUDA_ERROR_NO_DEVICE;
    EXPECT_EQ(examine_cuda(api).reason, "No GPU devices found");
    state.init = CUDA_SUCCESS;
    state.sms = {};
    EXPECT_EQ(examine_cuda(api).reason, "No GPU devices found");
    state.init = 803;
    EXPECT_EQ(examine_cuda(api).reason.rfind("CUDA driver not detected (cuInit failed", 0), 0u);
    state.init = CUDA_SUCCESS;
    state.sms = {75};
    EXPECT_EQ(examine_cuda(api).reason,
              "GPU 0 (Pretend GPU) has compute capability 7.5, needed is 8.0 or newer");
    state.sms = {75, 80, 120};
    found = examine_cuda(api);
    EXPECT_EQ(found.ordinals, (std::vector<int>{1, 2}));
    EXPECT_EQ(found.reason, "");
    EXPECT_EQ(found.driver_version, 12000);
}

TEST_F(CudaDriverTest, InfoAndContext) {
    {
        const auto gpu = driver();
        EXPECT_EQ(state.retained, 1);
        EXPECT_EQ(gpu->kind(), "cuda");
        EXPECT_EQ(gpu->info().name, "Pretend GPU");
        EXPECT_EQ(gpu->info().sm, 90);
        EXPECT_EQ(gpu->info().multiprocessors, 132);
        EXPECT_EQ(gpu->info().memory_bytes, 80ull << 30);
        EXPECT_EQ(gpu->info().highest_priority, -5);
        EXPECT_EQ(gpu->info().pci_bus_id, "0000:01:00.0");
        const int before = state.context_switches;
        gpu->synchronize();
        EXPECT_EQ(state.context_switches, before);
        state.current = fake<CUcontext>(11);  // another library's
        gpu->synchronize();
        EXPECT_EQ(state.context_switches, before + 1);
        EXPECT_EQ(state.current, fake<CUcontext>(10));
    }
    EXPECT_EQ(state.retained, 0);
}

TEST_F(CudaDriverTest, AFailedStartReleasesTheContext) {
    state.failures["range"] = 1;
    EXPECT_THROW(driver(), DriverError);
    EXPECT_EQ(state.retained, 0);
}

TEST_F(CudaDriverTest, ErrorsCarryCallCodeAndName) {
    const auto gpu = driver();
    state.failures["alloc"] = CUDA_ERROR_OUT_OF_MEMORY;
    try {
        gpu->allocate(1 << 20);
        FAIL();
    } catch (const DriverError& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::memory);
        EXPECT_EQ(failure.call(), "cuMemAlloc_v2");
        EXPECT_EQ(failure.code(), 2);
        EXPECT_EQ(failure.code_name(), "CUDA_ERROR_OUT_OF_MEMORY");
    }
    state.failures["query"] = CUDA_ERROR_NOT_READY;
    EXPECT_FALSE(gpu->stream_query(stream));
    state.failures["query"] = CUDA_SUCCESS;
    EXPECT_TRUE(gpu->stream_query(stream));
    state.failures["query"] = CUDA_ERROR_ILLEGAL_ADDRESS;
    const std::string text = message(ErrorKind::driver, [&] { gpu->stream_query(stream); });
    EXPECT_NE(text.find("a kernel queued earlier failed"), std::string::npos) << text;
}

TEST_F(CudaDriverTest, CopiesToPageableMemoryWait) {
    const auto gpu = driver();
    char target[4];
    gpu->copy_to_host(stream, target, 256, sizeof(target));
    EXPECT_EQ(state.synchronized, 1);
    state.pinned = true;
    gpu->copy_to_host(stream, target, 256, sizeof(target));
    EXPECT_EQ(state.synchronized, 1);
    state.pinned = false;
    state.capturing = true;
    gpu->copy_to_host(stream, target, 256, sizeof(target));
    EXPECT_EQ(state.synchronized, 1);
    const std::size_t calls = state.calls.size();
    gpu->copy_to_host(stream, target, 256, 0);
    gpu->copy_to_device(stream, 256, target, 0);
    EXPECT_EQ(state.calls.size(), calls);
}

TEST_F(CudaDriverTest, LaunchPacksParametersAndAttributes) {
    const auto gpu = driver();
    const FunctionHandle function = gpu->function(def);
    EXPECT_EQ(gpu->function(def), function);
    EXPECT_EQ(state.modules, 1);
    const char params[] = "parameters";
    gpu->launch(stream, function, {{2, 3, 4}, {5, 6, 7}, 100, 4}, params, sizeof(params));
    // One struct, which may be aligned to more than the parameters' beginning is.
    EXPECT_EQ(state.whole, params);
    EXPECT_EQ(state.launched.gridDimZ, 4u);
    EXPECT_EQ(state.launched.blockDimX, 5u);
    EXPECT_EQ(state.launched.sharedMemBytes, 100u);
    EXPECT_EQ(state.launched.hStream, fake<CUstream>(60));
    ASSERT_EQ(state.attributes.size(), 2u);
    EXPECT_EQ(state.attributes[0].id, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    EXPECT_EQ(state.attributes[0].value.clusterDim.x, 4u);
    EXPECT_EQ(state.attributes[1].id, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
    EXPECT_EQ(state.attributes[1].value.programmaticStreamSerializationAllowed, 1);
    gpu->launch(stream, function, {.grid = {2, 3, 4}, .cluster = 0}, params, sizeof(params));
    ASSERT_EQ(state.attributes.size(), 1u);
    EXPECT_EQ(state.attributes[0].id, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
    EXPECT_EQ(state.attributes[0].value.cooperative, 1);
    gpu->launch(stream, function, {}, nullptr, 0);
    EXPECT_EQ(state.params, "");
    EXPECT_EQ(state.whole, nullptr);
    def.waits_for_predecessor = false;
    def.name = "of a user";
    gpu->launch(stream, gpu->function(def), {}, params, sizeof(params));
    EXPECT_EQ(state.params, std::string(params, sizeof(params)));
    EXPECT_EQ(state.whole, nullptr);
}

TEST_F(CudaDriverTest, OnlyWhatWaitsMayOverlap) {
    const auto overlaps = [&] {
        const auto gpu = driver();
        gpu->launch(stream, gpu->function(def), {}, nullptr, 0);
        return !state.attributes.empty();
    };
    EXPECT_TRUE(overlaps());
    state.ptx_version = 80;  // compiled by the driver from compute_80 PTX: no griddepcontrol
    EXPECT_FALSE(overlaps());
    state.ptx_version = 90;
    def.waits_for_predecessor = false;
    EXPECT_FALSE(overlaps());
    def.waits_for_predecessor = true;
    state.driver_version = 12020;
    EXPECT_FALSE(overlaps());
    state.driver_version = 13000;
    state.sms = {80};
    EXPECT_FALSE(overlaps());
    state.sms = {90};
    setenv("PYGPUKIT_NO_OVERLAP", "1", 1);
    EXPECT_FALSE(overlaps());
    unsetenv("PYGPUKIT_NO_OVERLAP");
    EXPECT_TRUE(overlaps());
}

TEST_F(CudaDriverTest, ImagesThatCannotRun) {
    const auto gpu = driver();
    const Image none;
    KernelDef without = def;
    without.image = &none;
    std::string text = message(ErrorKind::unsupported, [&] { gpu->function(without); });
    EXPECT_NE(text.find("built without device code"), std::string::npos) << text;
    state.failures["load"] = CUDA_ERROR_NO_BINARY_FOR_GPU;
    text = message(ErrorKind::unsupported, [&] { gpu->function(def); });
    EXPECT_NE(text.find("SM 90 (Pretend GPU)"), std::string::npos) << text;
    state.failures.clear();
    state.failures["get"] = CUDA_ERROR_NOT_FOUND;
    text = message(ErrorKind::driver, [&] { gpu->function(def); });
    EXPECT_NE(text.find("no kernel 'kernel'"), std::string::npos) << text;
    state.failures.clear();
    EXPECT_NE(gpu->function(def), nullptr);
}

TEST_F(CudaDriverTest, LargeSharedMemoryIsOptedIn) {
    const auto gpu = driver();
    def.max_shared_bytes = 48 * 1024 - 7;
    gpu->function(def);
    EXPECT_EQ(state.shared_opt_in, 0);
    def.name = "large with its 7 static bytes";
    def.max_shared_bytes = 48 * 1024;
    gpu->function(def);
    EXPECT_EQ(state.shared_opt_in, 48 * 1024);
    def.name = "large";
    def.max_shared_bytes = 200 * 1024;
    gpu->function(def);
    EXPECT_EQ(state.shared_opt_in, 200 * 1024);
}

TEST_F(CudaDriverTest, ImagesAreUnloadedOnce) {
    {
        const auto gpu = driver();
        const Image other{bytes, sizeof(bytes)};
        KernelDef second = def;
        second.image = &other;
        gpu->function(def);
        gpu->function(second);
        EXPECT_EQ(state.modules, 2);
        gpu->unload(other);
        gpu->unload(other);
        EXPECT_EQ(state.modules, 1);
    }
    EXPECT_EQ(state.modules, 0);
}

TEST_F(CudaDriverTest, Graphs) {
    const auto gpu = driver();
    gpu->capture_begin(stream);
    const GraphHandle graph = gpu->capture_end(stream);
    EXPECT_EQ(gpu->graph_node_count(graph), 3u);
    EXPECT_EQ(state.graphs, 0);  // the executable form is enough
    EXPECT_EQ(state.execs, 1);
    gpu->graph_launch(graph, stream);
    EXPECT_EQ(state.calls.back(), "graph_launch");
    gpu->graph_destroy(graph);
    EXPECT_EQ(state.execs, 0);
    state.failures["instantiate"] = 1;
    EXPECT_THROW(gpu->capture_end(stream), DriverError);
    EXPECT_EQ(state.graphs, 0);
}

TEST_F(CudaDriverTest, WithoutGraphCallsOnlyGraphsAreRefused) {
    api.cuGraphInstantiateWithFlags = nullptr;
    const auto gpu = driver();
    const std::string text = message(ErrorKind::unsupported, [&] { gpu->capture_begin(stream); });
    EXPECT_NE(text.find("without graph calls"), std::string::npos) << text;
    gpu->launch(stream, gpu->function(def), {}, nullptr, 0);
}

TEST_F(CudaDriverTest, VirtualMemory) {
    const auto gpu = driver();
    EXPECT_EQ(gpu->info().physical_granularity, 2u << 20);
    const DevicePtr at = gpu->reserve_address(8 << 20);
    const PhysicalHandle memory = gpu->physical_create(2 << 20);
    gpu->map(at, memory, 2 << 20);
    gpu->allow_access(at, 2 << 20);
    gpu->unmap(at, 2 << 20);
    gpu->physical_destroy(memory);
    gpu->release_address(at, 8 << 20);
    EXPECT_EQ(state.calls,
              (std::vector<std::string>{"retain", "range", "resource", "split", "split", "reserve", "create",
                                        "map", "access", "unmap", "release", "address_free"}));
    state.failures["create"] = CUDA_ERROR_OUT_OF_MEMORY;
    message(ErrorKind::memory, [&] { gpu->physical_create(2 << 20); });
}

TEST_F(CudaDriverTest, WithoutVirtualMemory) {
    const auto lacks = [&] {
        const auto gpu = driver();
        EXPECT_EQ(gpu->info().physical_granularity, 0u);
        message(ErrorKind::unsupported, [&] { gpu->reserve_address(2 << 20); });
        message(ErrorKind::unsupported, [&] { gpu->physical_create(2 << 20); });
        gpu->unmap(4096, 2 << 20);
        gpu->release_address(4096, 2 << 20);
    };
    state.virtual_memory = 0;
    lacks();
    state.virtual_memory = 1;
    api.cuMemUnmap = nullptr;
    lacks();
}

TEST_F(CudaDriverTest, SmPartitions) {
    auto gpu = driver();
    EXPECT_EQ(gpu->info().sm_groups, 16);
    EXPECT_EQ(gpu->info().sm_group_size, 8);
    const int groups[] = {3, 0, 15};
    const SmPartitionHandle partition = gpu->sm_partition_create(groups);
    EXPECT_EQ(state.described, (std::vector<unsigned>{0, 3, 15}));
    EXPECT_EQ(gpu->stream_create(-2, partition), fake<StreamHandle>(102));
    gpu->sm_partition_destroy(partition);
    gpu->sm_partition_destroy(nullptr);
    for (const std::vector<int>& bad : std::vector<std::vector<int>>{{}, {16}, {-1}, {1, 2, 1}}) {
        message(ErrorKind::value, [&] { gpu->sm_partition_create(bad); });
    }
    // The context of the destroyed one serves the next of the same groups; others need one of their own.
    const int same[] = {15, 3, 0}, other[] = {1};
    EXPECT_EQ(gpu->sm_partition_create(same), partition);
    EXPECT_EQ(state.partitions, 1);
    for (const char* call : {"describe", "green"}) {
        state.failures = {{call, CUDA_ERROR_OUT_OF_MEMORY}};
        message(ErrorKind::memory, [&] { gpu->sm_partition_create(same); });
        message(ErrorKind::memory, [&] { gpu->sm_partition_create(other); });
    }
    gpu->sm_partition_destroy(partition);
    gpu.reset();
    EXPECT_EQ(state.partitions, 0);
}

TEST_F(CudaDriverTest, WithoutGreenContextsThereAreNoPartitions) {
    const auto lacks = [&] {
        const auto gpu = driver();
        EXPECT_EQ(gpu->info().sm_groups, 0);
        EXPECT_EQ(gpu->info().sm_group_size, 0);
        const int groups[] = {0};
        message(ErrorKind::unsupported, [&] { gpu->sm_partition_create(groups); });
    };
    for (const char* call : {"resource", "split"}) {
        state.failures = {{call, 801}};
        lacks();
    }
    state.failures.clear();
    api.cuGreenCtxStreamCreate = nullptr;
    lacks();
}

TEST_F(CudaDriverTest, AForkedChildGetsAnErrorNotACrash) {
    examine_cuda(api);
    const auto gpu = driver();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        int result = 1;
        try {
            gpu->allocate(16);
        } catch (const Error& failure) {
            result = std::string(failure.what()).find("forked after CUDA") != std::string::npos ? 0 : 2;
        }
        _exit(result);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_NE(gpu->allocate(16), 0u);
}

}  // namespace
}  // namespace gpk
