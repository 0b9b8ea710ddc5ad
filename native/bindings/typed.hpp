// Handles whose type says, in signatures and stubs, what they take. The read_* functions read them.
#pragma once

#include <nanobind/nanobind.h>

namespace gpk::python {

struct DTypeArg : nanobind::handle {};
struct DeviceArg : nanobind::handle {};
struct StreamArg : nanobind::handle {};
struct IntsArg : nanobind::handle {};
struct BytesArg : nanobind::handle {};
struct NumberArg : nanobind::handle {};
struct OperandArg : nanobind::handle {};
struct ArrayArg : nanobind::handle {};
struct ArraysArg : nanobind::handle {};
struct KeyArg : nanobind::handle {};

}  // namespace gpk::python

#define GPK_TYPED_HANDLE(type, text)                                               \
    template <>                                                                    \
    struct nanobind::detail::type_caster<gpk::python::type> {                      \
        NB_TYPE_CASTER(gpk::python::type, const_name(text))                        \
        bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {    \
            value = {source};                                                      \
            return true;                                                           \
        }                                                                          \
        static handle from_cpp(handle source, rv_policy, cleanup_list*) noexcept { \
            return source.inc_ref();                                               \
        }                                                                          \
    };

GPK_TYPED_HANDLE(DTypeArg, "DType | str | type")
GPK_TYPED_HANDLE(DeviceArg, "Device | str")
GPK_TYPED_HANDLE(StreamArg, "Stream")
GPK_TYPED_HANDLE(IntsArg, "int | collections.abc.Sequence[int]")
GPK_TYPED_HANDLE(BytesArg, "int | str")
GPK_TYPED_HANDLE(NumberArg, "float")
GPK_TYPED_HANDLE(OperandArg, "Array | float")
GPK_TYPED_HANDLE(ArrayArg, "Array")
GPK_TYPED_HANDLE(ArraysArg, "collections.abc.Sequence[Array]")
GPK_TYPED_HANDLE(KeyArg,
                 "int | slice | types.EllipsisType | tuple[int | slice | types.EllipsisType | None, ...]")

#undef GPK_TYPED_HANDLE
