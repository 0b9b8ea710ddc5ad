#include "kernels/elementwise/rows.hpp"

namespace gpk::kernels {
namespace {

// One plain loop for each conversion, so that each is compiled for the widest vectors there are.
#define GPK_LOAD(name, T)                                                                            \
    GPK_SIMD void load_##name(const stored_t<T>* from, std::int64_t count, compute_type_t<T>* out) { \
        for (std::int64_t i = 0; i < count; ++i) out[i] = decode<T, compute_type_t<T>>(from[i]);     \
    }
GPK_ALL_STORED(GPK_LOAD)
#undef GPK_LOAD

#define GPK_STORE(name, T, C)                                                      \
    GPK_SIMD void store_##name(stored_t<T>* to, std::int64_t count, const C* in) { \
        for (std::int64_t i = 0; i < count; ++i) to[i] = encode<T>(in[i]);         \
    }
#define GPK_STORES(name, T)          \
    GPK_STORE(name, T, float)        \
    GPK_STORE(name, T, double)       \
    GPK_STORE(name, T, std::int64_t) \
    GPK_STORE(name, T, std::uint64_t)
GPK_ALL_STORED(GPK_STORES)
#undef GPK_STORES
#undef GPK_STORE

}  // namespace

template <class C>
void load_row(DType dtype, const void* data, std::int64_t offset, std::int64_t stride, std::int64_t count,
              C* out) {
    switch (dtype) {
#define GPK_CASE(name, T)                                                                     \
    case DType::name:                                                                         \
        if constexpr (std::is_same_v<compute_type_t<T>, C>) {                                 \
            const auto* from = static_cast<const stored_t<T>*>(data) + offset;                \
            if (stride == 1) return load_##name(from, count, out);                            \
            for (std::int64_t i = 0; i < count; ++i) out[i] = decode<T, C>(from[i * stride]); \
        }                                                                                     \
        break;
        GPK_ALL_STORED(GPK_CASE)
#undef GPK_CASE
    }
}

template <class C>
void store_row(DType dtype, void* data, std::int64_t offset, std::int64_t stride, std::int64_t count,
               const C* in) {
    switch (dtype) {
#define GPK_CASE(name, T)                                                           \
    case DType::name: {                                                             \
        auto* to = static_cast<stored_t<T>*>(data) + offset;                        \
        if (stride == 1) return store_##name(to, count, in);                        \
        for (std::int64_t i = 0; i < count; ++i) to[i * stride] = encode<T>(in[i]); \
        break;                                                                      \
    }
        GPK_ALL_STORED(GPK_CASE)
#undef GPK_CASE
    }
}

#define GPK_INSTANTIATE(name, C)                                                              \
    template void load_row(DType, const void*, std::int64_t, std::int64_t, std::int64_t, C*); \
    template void store_row(DType, void*, std::int64_t, std::int64_t, std::int64_t, const C*);
GPK_COMPUTE_TYPES(GPK_INSTANTIATE)
#undef GPK_INSTANTIATE

}  // namespace gpk::kernels
