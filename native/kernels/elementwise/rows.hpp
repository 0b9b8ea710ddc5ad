// Host twins of strided kernels walk their operands row by row, a row being a run along the innermost
// axis; conversions and arithmetic then run on short contiguous buffers in the cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/elementwise/elements.hpp"
#include "kernels/elementwise/packs.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

// The KernelDef of a prebuilt element-wise kernel; each waits for its predecessor.
constexpr KernelDef elementwise_kernel(const char* name, const Image& image, HostTwin twin) {
    return {.name = name, .image = &image, .twin = twin, .waits_for_predecessor = true};
}

// One kernel for an op at a dtype: a row of a family's table.
template <class Op>
struct KernelEntry {
    Op op;
    DType dtype;
    Kernel kernel;
};

// Such a table's kernels by op and dtype; null where it has no row.
template <class Op, int op_count>
class KernelIndex {
   public:
    template <std::size_t rows>
    explicit KernelIndex(const KernelEntry<Op> (&entries)[rows]) {
        for (const auto& entry : entries) {
            kernels_[static_cast<int>(entry.op)][static_cast<int>(entry.dtype)] = &entry.kernel;
        }
    }
    const Kernel* find(Op op, DType dtype) const {
        return kernels_[static_cast<int>(op)][static_cast<int>(dtype)];
    }

   private:
    const Kernel* kernels_[op_count][kDTypeCount] = {};
};

inline constexpr std::int64_t kParallelGrain = 1 << 15;
inline constexpr std::int64_t kBufferElements = 1024;
inline constexpr std::int64_t kWholeRow = std::numeric_limits<std::int64_t>::max();

// A contiguous run of `count` elements as a layout.
template <int N>
Layout<N> one_axis(std::int64_t count) {
    Layout<N> layout;
    layout.count = count;
    layout.rank = 1;
    layout.wide = 1;
    layout.axis[0].extent = count;
    for (auto& stride : layout.axis[0].stride) stride = 1;
    return layout;
}

// A walk in packs of `elements` as one in elements, whose first operand is the contiguous result; is_run: of
// the others, which are runs along the innermost axis.
template <int K>
Layout<K + 1> in_elements(const PackLayout<K>& packs, std::int64_t count, std::int64_t elements,
                          const bool (&is_run)[K]) {
    Layout<K + 1> layout;
    layout.count = count;
    layout.rank = packs.rank;
    layout.wide = 1;
    std::int64_t run = 1;
    for (int d = 0; d < packs.rank; ++d) {
        auto& axis = layout.axis[d];
        axis.extent = packs.rank == 1 ? count : packs.axis[d].extent * (d == 0 ? elements : 1);
        axis.stride[0] = run;
        run *= axis.extent;
        for (int k = 0; k < K; ++k)
            axis.stride[k + 1] = packs.axis[d].stride[k] * (is_run[k] && d > 0 ? elements : 1);
    }
    return layout;
}

// body(count, offset) for each piece of a row in flat indices begin..end, at most `longest` elements.
template <int N, class Body>
void for_rows_between(const Layout<N>& layout, std::int64_t begin, std::int64_t end, std::int64_t longest,
                      Body&& body) {
    const std::int64_t inner = layout.axis[0].extent;
    while (begin < end) {
        std::int64_t offset[N];
        layout.offsets(begin, offset);
        const std::int64_t count = std::min(inner - begin % inner, end - begin);
        begin += count;
        for (std::int64_t done = 0; done < count; done += longest) {
            const std::int64_t n = std::min(longest, count - done);
            body(n, offset);
            for (int k = 0; k < N; ++k) offset[k] += n * layout.axis[0].stride[k];
        }
    }
}

// The same for all rows, on all cores.
template <int N, class Body>
void for_rows(const Layout<N>& layout, std::int64_t longest, Body&& body) {
    parallel_for(layout.count, kParallelGrain, [&](std::int64_t begin, std::int64_t end) {
        for_rows_between(layout, begin, end, longest, body);
    });
}

// Elements offset, offset + stride, ... of an array whose dtype is of C's class. C is a compute type.
template <class C>
void load_row(DType dtype, const void* data, std::int64_t offset, std::int64_t stride, std::int64_t count,
              C* out);

// The same elements of an array of any dtype, converted from a compute type.
template <class C>
void store_row(DType dtype, void* data, std::int64_t offset, std::int64_t stride, std::int64_t count,
               const C* in);

// The bytes of `count` truth values.
inline void store_bytes(void* data, std::int64_t offset, std::int64_t stride, std::int64_t count,
                        const void* in) {
    auto* to = static_cast<std::uint8_t*>(data) + offset;
    for (std::int64_t i = 0; i < count; ++i) to[i * stride] = static_cast<const std::uint8_t*>(in)[i];
}

// Calls body.operator()<W>() with the type that moves elements of that size as they are.
struct alignas(16) Word16 {
    std::uint64_t low, high;
};
template <class Body>
void with_word(int element_bytes, Body&& body) {
    switch (element_bytes) {
        case 1: body.template operator()<std::uint8_t>(); break;
        case 2: body.template operator()<std::uint16_t>(); break;
        case 4: body.template operator()<std::uint32_t>(); break;
        case 8: body.template operator()<std::uint64_t>(); break;
        case 16: body.template operator()<Word16>(); break;
    }
}

}  // namespace gpk::kernels
