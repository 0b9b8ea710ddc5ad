#include "driver/cublaslt.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "driver/libraries.hpp"

namespace gpk {

namespace {

// Constants and types of cublasLt.h (CUDA 12 and 13).
using Status = int;
enum DataType : int { kFloat32 = 0, kFloat16 = 2, kBfloat16 = 14 };
enum ComputeType : int { kCompute32 = 68, kComputeTf32 = 77 };
enum MatmulAttribute : int { kTransposeA = 3, kTransposeB = 4 };
enum LayoutAttribute : int { kBatchCount = 5, kBatchOffset = 6 };
enum PreferenceAttribute : int {
    kMaxWorkspace = 1,
    kAlignmentA = 5,
    kAlignmentB = 6,
    kAlignmentC = 7,
    kAlignmentD = 8,
};
constexpr Status kSuccess = 0, kNotSupported = 15;

struct Algorithm {
    std::uint64_t data[8];
};
struct Heuristic {
    Algorithm algorithm;
    std::size_t workspace_bytes;
    Status state;
    float waves;
    int reserved[4];
};

#define GPK_CUBLASLT_CALLS(X)                                                                          \
    X(cublasLtCreate, (void**))                                                                        \
    X(cublasLtDestroy, (void*))                                                                        \
    X(cublasLtMatmulDescCreate, (void**, int, int))                                                    \
    X(cublasLtMatmulDescDestroy, (void*))                                                              \
    X(cublasLtMatmulDescSetAttribute, (void*, int, const void*, std::size_t))                          \
    X(cublasLtMatrixLayoutCreate, (void**, int, std::uint64_t, std::uint64_t, std::int64_t))           \
    X(cublasLtMatrixLayoutDestroy, (void*))                                                            \
    X(cublasLtMatrixLayoutSetAttribute, (void*, int, const void*, std::size_t))                        \
    X(cublasLtMatmulPreferenceCreate, (void**))                                                        \
    X(cublasLtMatmulPreferenceDestroy, (void*))                                                        \
    X(cublasLtMatmulPreferenceSetAttribute, (void*, int, const void*, std::size_t))                    \
    X(cublasLtMatmulAlgoGetHeuristic,                                                                  \
      (void*, void*, void*, void*, void*, void*, void*, int, Heuristic*, int*))                        \
    X(cublasLtMatmul, (void*, void*, const void*, const void*, void*, const void*, void*, const void*, \
                       const void*, void*, void*, void*, const Algorithm*, void*, std::size_t, void*))

struct Calls {
#define GPK_DECLARE(name, arguments) Status(*name) arguments = nullptr;
    GPK_CUBLASLT_CALLS(GPK_DECLARE)
#undef GPK_DECLARE
};

const Calls& calls() {
    const FoundLibrary& library = find_library(Library::cublaslt);
    if (library.handle == nullptr) {
        throw error(ErrorKind::unsupported,
                    {.call = "matmul",
                     .argument = "backend",
                     .expected = "cuBLASLt",
                     .got = str("none here (", library.status.problem, ")"),
                     .fix = "pip install nvidia-cublas, or leave backend out: it is never needed"});
    }
    static const Calls table = [&] {
        Calls found;
        std::string missing;
#define GPK_RESOLVE(name, arguments)                                                                   \
    found.name = reinterpret_cast<decltype(found.name)>(platform::find_symbol(library.handle, #name)); \
    if (found.name == nullptr) missing += " " #name;
        GPK_CUBLASLT_CALLS(GPK_RESOLVE)
#undef GPK_RESOLVE
        if (!missing.empty()) {
            throw error(ErrorKind::unsupported, {.call = "matmul",
                                                 .argument = "backend",
                                                 .got = str(library.status.path, ", which lacks", missing)});
        }
        return found;
    }();
    return table;
}

void check(const char* call, Status status) {
    if (status == kSuccess) return;
    throw DriverError(call, status, str("CUBLAS_STATUS_", status), "cuBLASLt refused the call");
}
#define GPK_LT(name, ...) check(#name, calls().name(__VA_ARGS__))

// A descriptor of the library, destroyed with its owner.
struct Descriptor {
    void* pointer = nullptr;
    Status (*destroy)(void*) = nullptr;
    Descriptor() = default;
    explicit Descriptor(Status (*how)(void*)) : destroy(how) {}
    ~Descriptor() {
        if (pointer != nullptr) destroy(pointer);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
};

int data_type(DType dtype) {
    switch (dtype) {
        case DType::float16: return kFloat16;
        case DType::bfloat16: return kBfloat16;
        default: return kFloat32;
    }
}

// The largest power of two up to 256 that divides the address.
std::uint32_t alignment_of(std::uint64_t address) {
    return static_cast<std::uint32_t>(std::uint64_t{1} << std::min(8, std::countr_zero(address | 256)));
}

}  // namespace

const Image kCublasLtImage;

// The library sees matrices by columns, so it is asked for c^T = b^T a^T: its first operand is our b.
struct CublasLt::Plan {
    Descriptor operation{calls().cublasLtMatmulDescDestroy};
    Descriptor first{calls().cublasLtMatrixLayoutDestroy};
    Descriptor second{calls().cublasLtMatrixLayoutDestroy};
    Descriptor result{calls().cublasLtMatrixLayoutDestroy};
    Algorithm algorithm{};

    Plan(void* handle, const LibraryProduct& p) {
        GPK_LT(cublasLtMatmulDescCreate, &operation.pointer, p.tf32 ? kComputeTf32 : kCompute32, kFloat32);
        const int transpose_first = p.b.transposed, transpose_second = p.a.transposed;
        GPK_LT(cublasLtMatmulDescSetAttribute, operation.pointer, kTransposeA, &transpose_first, sizeof(int));
        GPK_LT(cublasLtMatmulDescSetAttribute, operation.pointer, kTransposeB, &transpose_second,
               sizeof(int));
        layout(first, p, p.b, p.n, p.k);
        layout(second, p, p.a, p.k, p.m);
        layout(result, p, p.c, p.n, p.m);
        choose(handle, p);
    }

    // `rows` x `columns` by columns, as the library multiplies it.
    static void layout(Descriptor& out, const LibraryProduct& p, const LibraryMatrix& matrix,
                       std::int64_t rows, std::int64_t columns) {
        if (matrix.transposed) std::swap(rows, columns);
        GPK_LT(cublasLtMatrixLayoutCreate, &out.pointer, data_type(p.dtype), static_cast<std::uint64_t>(rows),
               static_cast<std::uint64_t>(columns), matrix.leading);
        const auto batches = static_cast<std::int32_t>(p.batches);
        GPK_LT(cublasLtMatrixLayoutSetAttribute, out.pointer, kBatchCount, &batches, sizeof(batches));
        GPK_LT(cublasLtMatrixLayoutSetAttribute, out.pointer, kBatchOffset, &matrix.batch_stride,
               sizeof(matrix.batch_stride));
    }

    void choose(void* handle, const LibraryProduct& p) {
        Descriptor preference(calls().cublasLtMatmulPreferenceDestroy);
        GPK_LT(cublasLtMatmulPreferenceCreate, &preference.pointer);
        GPK_LT(cublasLtMatmulPreferenceSetAttribute, preference.pointer, kMaxWorkspace, &p.workspace_bytes,
               sizeof(p.workspace_bytes));
        const std::pair<int, std::uint64_t> addresses[] = {{kAlignmentA, p.b.data},
                                                           {kAlignmentB, p.a.data},
                                                           {kAlignmentC, p.c.data},
                                                           {kAlignmentD, p.c.data}};
        for (const auto& [attribute, address] : addresses) {
            const std::uint32_t bytes = alignment_of(address);
            GPK_LT(cublasLtMatmulPreferenceSetAttribute, preference.pointer, attribute, &bytes,
                   sizeof(bytes));
        }
        Heuristic proposal{};
        int found = 0;
        const Status status = calls().cublasLtMatmulAlgoGetHeuristic(
            handle, operation.pointer, first.pointer, second.pointer, result.pointer, result.pointer,
            preference.pointer, 1, &proposal, &found);
        if (status == kNotSupported || (status == kSuccess && found == 0)) {
            throw error(ErrorKind::unsupported,
                        {.call = "matmul",
                         .argument = "backend",
                         .expected = "a product that cuBLASLt has an algorithm for",
                         .got = str(p.m, " x ", p.k, " times ", p.k, " x ", p.n, " of ", name(p.dtype)),
                         .fix = "leave backend out"});
        }
        check("cublasLtMatmulAlgoGetHeuristic", status);
        algorithm = proposal.algorithm;
    }
};

CublasLt::CublasLt() { GPK_LT(cublasLtCreate, &handle_); }

CublasLt::~CublasLt() { calls().cublasLtDestroy(handle_); }

std::shared_ptr<const CublasLt::Plan> CublasLt::plan_of(const LibraryProduct& p) {
    constexpr std::size_t kMostPlans = 1024;
    const int kind = static_cast<int>(p.dtype) * 8 + p.tf32 * 4 + p.a.transposed * 2 + p.b.transposed;
    const Key key{kind,
                  p.m,
                  p.n,
                  p.k,
                  p.batches,
                  p.a.leading,
                  p.b.leading,
                  p.c.leading,
                  p.a.batch_stride,
                  p.b.batch_stride,
                  p.c.batch_stride,
                  alignment_of(p.a.data),
                  alignment_of(p.b.data),
                  alignment_of(p.c.data),
                  static_cast<std::int64_t>(p.workspace_bytes)};
    std::lock_guard lock(mutex_);
    if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
    if (plans_.size() >= kMostPlans) plans_.clear();
    return plans_.emplace(key, std::make_shared<const Plan>(handle_, p)).first->second;
}

void CublasLt::multiply(void* stream, const LibraryProduct& p) {
    const auto plan = plan_of(p);
    const float one = 1, zero = 0;
    const auto at = [](std::uint64_t address) { return reinterpret_cast<void*>(address); };
    GPK_LT(cublasLtMatmul, handle_, plan->operation.pointer, &one, at(p.b.data), plan->first.pointer,
           at(p.a.data), plan->second.pointer, &zero, at(p.c.data), plan->result.pointer, at(p.c.data),
           plan->result.pointer, &plan->algorithm, at(p.workspace), p.workspace_bytes, stream);
}

}  // namespace gpk
