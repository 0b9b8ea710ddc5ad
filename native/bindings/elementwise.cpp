// Element-wise functions and operators: one row a name.
#include "bindings/common.hpp"

#include <nanobind/stl/optional.h>

#include "ops/elementwise.hpp"
#include "ops/matmul.hpp"

namespace gpk::python {

namespace {

struct BinaryRow {
    const char* name;
    BinaryOp op;
    const char* formula;
    const char* operators[3] = {};  // x + y, y + x reflected, x += y
};

constexpr BinaryRow kBinary[] = {
    {"add", BinaryOp::add, "x + y", {"__add__", "__radd__", "__iadd__"}},
    {"subtract", BinaryOp::subtract, "x - y", {"__sub__", "__rsub__", "__isub__"}},
    {"multiply", BinaryOp::multiply, "x * y", {"__mul__", "__rmul__", "__imul__"}},
    {"divide",
     BinaryOp::divide,
     "x / y; integers give float64",
     {"__truediv__", "__rtruediv__", "__itruediv__"}},
    {"floor_divide",
     BinaryOp::floor_divide,
     "floor(x / y); an integer divided by 0 gives 0",
     {"__floordiv__", "__rfloordiv__", "__ifloordiv__"}},
    {"remainder",
     BinaryOp::remainder,
     "x - floor(x / y) * y, with the sign of y",
     {"__mod__", "__rmod__", "__imod__"}},
    {"fmod", BinaryOp::fmod, "x - trunc(x / y) * y, with the sign of x"},
    {"power", BinaryOp::power, "x ** y", {"__pow__", "__rpow__", "__ipow__"}},
    {"minimum", BinaryOp::minimum, "the smaller one; NaN where either is NaN"},
    {"maximum", BinaryOp::maximum, "the larger one; NaN where either is NaN"},
    {"arctan2", BinaryOp::arctan2, "the angle of the point (y, x), in radians from -pi to pi"},
    {"hypot", BinaryOp::hypot, "sqrt(x*x + y*y)"},
    {"logaddexp", BinaryOp::logaddexp, "log(exp(x) + exp(y))"},
    {"equal", BinaryOp::equal, "x == y, as bool", {"__eq__"}},
    {"not_equal", BinaryOp::not_equal, "x != y, as bool", {"__ne__"}},
    {"less", BinaryOp::less, "x < y, as bool", {"__lt__"}},
    {"less_equal", BinaryOp::less_equal, "x <= y, as bool", {"__le__"}},
    {"greater", BinaryOp::greater, "x > y, as bool", {"__gt__"}},
    {"greater_equal", BinaryOp::greater_equal, "x >= y, as bool", {"__ge__"}},
    {"logical_and", BinaryOp::logical_and, "x and y, as bool"},
    {"logical_or", BinaryOp::logical_or, "x or y, as bool"},
    {"logical_xor", BinaryOp::logical_xor, "whether exactly one is true, as bool"},
    {"bitwise_and", BinaryOp::bitwise_and, "x & y of integers or bools", {"__and__", "__rand__", "__iand__"}},
    {"bitwise_or", BinaryOp::bitwise_or, "x | y of integers or bools", {"__or__", "__ror__", "__ior__"}},
    {"bitwise_xor", BinaryOp::bitwise_xor, "x ^ y of integers or bools", {"__xor__", "__rxor__", "__ixor__"}},
    {"left_shift", BinaryOp::left_shift, "x << y of integers", {"__lshift__", "__rlshift__", "__ilshift__"}},
    {"right_shift",
     BinaryOp::right_shift,
     "x >> y of integers",
     {"__rshift__", "__rrshift__", "__irshift__"}},
};
static_assert(std::size(kBinary) == kBinaryOpCount);

struct UnaryRow {
    const char* name;
    UnaryOp op;
    const char* formula;
    const char* method = nullptr;
};

constexpr UnaryRow kUnary[] = {
    {"negative", UnaryOp::negative, "-x", "__neg__"},
    {"absolute", UnaryOp::absolute, "|x|", "__abs__"},
    {"sign", UnaryOp::sign, "-1, 0 or 1; NaN of NaN"},
    {"square", UnaryOp::square, "x * x"},
    {"reciprocal", UnaryOp::reciprocal, "1 / x"},
    {"sqrt", UnaryOp::sqrt, "the square root"},
    {"rsqrt", UnaryOp::rsqrt, "1 / sqrt(x)"},
    {"cbrt", UnaryOp::cbrt, "the cube root"},
    {"exp", UnaryOp::exp, "e ** x"},
    {"exp2", UnaryOp::exp2, "2 ** x"},
    {"expm1", UnaryOp::expm1, "e ** x - 1, exact near 0"},
    {"log", UnaryOp::log, "the natural logarithm"},
    {"log2", UnaryOp::log2, "the logarithm to base 2"},
    {"log10", UnaryOp::log10, "the logarithm to base 10"},
    {"log1p", UnaryOp::log1p, "log(1 + x), exact near 0"},
    {"sin", UnaryOp::sin, "the sine; x in radians"},
    {"cos", UnaryOp::cos, "the cosine; x in radians"},
    {"tan", UnaryOp::tan, "the tangent; x in radians"},
    {"arcsin", UnaryOp::arcsin, "the inverse sine, in radians"},
    {"arccos", UnaryOp::arccos, "the inverse cosine, in radians"},
    {"arctan", UnaryOp::arctan, "the inverse tangent, in radians"},
    {"sinh", UnaryOp::sinh, "the hyperbolic sine"},
    {"cosh", UnaryOp::cosh, "the hyperbolic cosine"},
    {"tanh", UnaryOp::tanh, "the hyperbolic tangent"},
    {"arcsinh", UnaryOp::arcsinh, "the inverse hyperbolic sine"},
    {"arccosh", UnaryOp::arccosh, "the inverse hyperbolic cosine"},
    {"arctanh", UnaryOp::arctanh, "the inverse hyperbolic tangent"},
    {"floor", UnaryOp::floor, "the largest integer not above x"},
    {"ceil", UnaryOp::ceil, "the smallest integer not below x"},
    {"trunc", UnaryOp::trunc, "x without its fraction"},
    {"rint", UnaryOp::rint, "the nearest integer, to even where two are equally near"},
    {"isnan", UnaryOp::isnan, "whether x is NaN, as bool"},
    {"isinf", UnaryOp::isinf, "whether x is an infinity, as bool"},
    {"isfinite", UnaryOp::isfinite, "whether x is neither NaN nor an infinity, as bool"},
    {"logical_not", UnaryOp::logical_not, "whether x is 0 (or False), as bool"},
    {"invert", UnaryOp::invert, "all bits flipped; `not x` of bools", "__invert__"},
    {"erf", UnaryOp::erf, "the error function"},
    {"sigmoid", UnaryOp::sigmoid, "1 / (1 + exp(-x))"},
    {"relu", UnaryOp::relu, "max(x, 0)"},
    {"silu", UnaryOp::silu, "x * sigmoid(x)"},
    {"gelu", UnaryOp::gelu, "x * (1 + erf(x / sqrt(2))) / 2"},
    {"gelu_tanh", UnaryOp::gelu_tanh, "x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2"},
};
static_assert(std::size(kUnary) == kUnaryOpCount);

// The result, or nothing where an operand is neither an array nor a number.
std::optional<Array> apply(BinaryOp op, nb::handle x, nb::handle y, const Array* out) {
    const Array* a = try_array(x);
    const Array* b = try_array(y);
    if (a != nullptr && b != nullptr)
        return run_on(a->device(), [&] { return ops::binary(op, *a, *b, out); });
    if (a == nullptr && b == nullptr) return std::nullopt;
    const std::optional<Number> number = read_number(a != nullptr ? y : x);
    if (!number) return std::nullopt;
    const Array& array = a != nullptr ? *a : *b;
    return run_on(array.device(), [&] {
        const Array operand = promoted_for(array, *number);
        return a != nullptr ? ops::binary(op, operand, number->value, out)
                            : ops::binary(op, number->value, operand, out);
    });
}

Array apply_function(const char* name, BinaryOp op, nb::handle x, nb::handle y, const Array* out) {
    if (std::optional<Array> result = apply(op, x, y, out)) return *std::move(result);
    for (const auto& [argument, value] : {std::pair<const char*, nb::handle>{"x", x}, {"y", y}}) {
        if (try_array(value) == nullptr && !read_number(value)) read_array(name, argument, value);  // throws
    }
    throw error(ErrorKind::type, {.call = name, .expected = "at least one array", .got = "two numbers"});
}

// An operand of a kind that we do not know may know us; a NumPy array does not, and has to be copied first.
nb::object not_implemented(const char* name, nb::handle other) {
    if (nb::hasattr(other, "__array_interface__")) read_array(name, "other", other);  // throws
    return nb::borrow(Py_NotImplemented);
}

template <std::size_t row>
nb::object apply_operator(nb::handle self, nb::handle other, bool reflected) {
    std::optional<Array> result = reflected ? apply(kBinary[row].op, other, self, nullptr)
                                            : apply(kBinary[row].op, self, other, nullptr);
    return result ? nb::cast(*std::move(result)) : not_implemented(kBinary[row].name, other);
}

constexpr bool op_is_equality(BinaryOp op) { return op == BinaryOp::equal || op == BinaryOp::not_equal; }

template <std::size_t row>
void bind_binary(nb::module_& m, nb::object& array_class) {
    constexpr BinaryRow each = kBinary[row];
    const std::string doc =
        str("Element-wise ", each.formula,
            ".\n\nx and y broadcast together and promote as in NumPy; one of them may be a number. "
            "`out`, where given, has\nthe result's shape and dtype and is returned.");
    m.def(
        each.name,
        [](OperandArg x, OperandArg y, ArrayArg out) {
            return apply_function(kBinary[row].name, kBinary[row].op, x, y, read_out(kBinary[row].name, out));
        },
        nb::arg("x"), nb::arg("y"), nb::kw_only(), nb::arg("out").none() = nb::none(), doc.c_str());
    auto method = [&](const char* name, auto function) {
        if (name == nullptr) return;
        // object's own equality takes anything and gives a bool.
        const bool equality = op_is_equality(kBinary[row].op);
        const std::string signature =
            str("def ", name, "(self, other: ", equality ? "typing.Any" : "Array | float", ", /) -> ",
                equality ? "typing.Any" : "Array");
        array_class.attr(name) =
            nb::cpp_function(function, nb::is_method(), nb::is_operator(), nb::scope(array_class),
                             nb::name(name), nb::arg("other").none(), nb::sig(signature.c_str()));
    };
    method(each.operators[0],
           [](nb::handle self, nb::handle other) { return apply_operator<row>(self, other, false); });
    method(each.operators[1],
           [](nb::handle self, nb::handle other) { return apply_operator<row>(self, other, true); });
    method(each.operators[2], [](nb::handle self, nb::handle other) -> nb::object {
        const Array target = nb::cast<const Array&>(self);
        if (!apply(kBinary[row].op, self, other, &target)) return not_implemented(kBinary[row].name, other);
        return nb::borrow(self);
    });
}

template <std::size_t row>
void bind_unary(nb::module_& m, nb::object& array_class) {
    constexpr UnaryRow each = kUnary[row];
    const std::string doc =
        str("Element-wise ", each.formula, ".\n\nThe result's dtype is NumPy's. `out`, where given, ",
            "has the result's shape and dtype and is returned.");
    m.def(
        each.name,
        [](ArrayArg x, ArrayArg out) {
            const Array& array = read_array(kUnary[row].name, "x", x);
            const Array* target = read_out(kUnary[row].name, out);
            return run_on(array.device(), [&] { return ops::unary(kUnary[row].op, array, target); });
        },
        nb::arg("x"), nb::kw_only(), nb::arg("out").none() = nb::none(), doc.c_str());
    if constexpr (each.method != nullptr) {
        array_class.attr(each.method) = nb::cpp_function(
            [](const Array& self) {
                return run_on(self.device(), [&] { return ops::unary(kUnary[row].op, self); });
            },
            nb::is_method(), nb::scope(array_class), nb::name(each.method));
    }
}

template <std::size_t... rows>
void bind_all_binary(nb::module_& m, nb::object& array_class, std::index_sequence<rows...>) {
    (bind_binary<rows>(m, array_class), ...);
}
template <std::size_t... rows>
void bind_all_unary(nb::module_& m, nb::object& array_class, std::index_sequence<rows...>) {
    (bind_unary<rows>(m, array_class), ...);
}

ops::MatmulBackend read_backend(const std::optional<std::string>& backend) {
    if (!backend) return ops::MatmulBackend::own;
    if (*backend == "cublaslt") return ops::MatmulBackend::cublaslt;
    throw error(ErrorKind::value, {.call = "matmul",
                                   .argument = "backend",
                                   .expected = "None or 'cublaslt'",
                                   .got = str("'", *backend, "'")});
}

Array matmul(ArrayArg x, ArrayArg y, ArrayArg out, DTypeArg dtype,
             const std::optional<std::string>& backend) {
    const Array& a = read_array("matmul", "x", x);
    const Array& b = read_array("matmul", "y", y);
    const Array* target = read_out("matmul", out);
    const auto result = dtype.is_none() ? std::nullopt : std::optional(read_dtype(dtype));
    const ops::MatmulBackend whose = read_backend(backend);
    return run_on(a.device(), [&] { return ops::matmul(a, b, target, whose, result); });
}

}  // namespace

// NumPy's scalars keep their dtype in promotion, Python's adapt to the array's.
Array promoted_for(const Array& array, const Number& number) {
    if (!number.dtype) return array;
    const DType wanted = promote(array.dtype(), *number.dtype);
    return wanted == array.dtype() ? array : ops::astype(array, wanted);
}

void bind_elementwise(nb::module_& m) {
    nb::object array_class = m.attr("Array");
    bind_all_binary(m, array_class, std::make_index_sequence<std::size(kBinary)>());
    bind_all_unary(m, array_class, std::make_index_sequence<std::size(kUnary)>());
    array_class.attr("__pos__") = nb::cpp_function([](const Array& self) { return self; }, nb::is_method(),
                                                   nb::scope(array_class), nb::name("__pos__"));
    array_class.attr("__hash__") = nb::none();  // equality is element-wise
    // The short names.
    for (const auto& [alias, name] : {std::pair{"sub", "subtract"}, {"mul", "multiply"}, {"div", "divide"}}) {
        m.attr(alias) = m.attr(name);
    }

    m.def(
        "matmul", &matmul, nb::arg("x"), nb::arg("y"), nb::kw_only(), nb::arg("out").none() = nb::none(),
        nb::arg("dtype").none() = nb::none(), nb::arg("backend").none() = nb::none(),
        "The matrix product over the last two axes; those before them broadcast, as in numpy.matmul.\n\n"
        "float32 is multiplied in float32 unless gp.set_matmul_precision says 'tf32'; float16 and bfloat16\n"
        "accumulate in float32. dtype: the result is as if both had been converted to it first, so float16\n"
        "can give the float32 sums and int8 the whole sums as int32. backend='cublaslt' takes NVIDIA's\n"
        "library, where it is installed, instead of this package's kernels, for float16, bfloat16 and\n"
        "float32; the simulated device knows no difference.\n"
        "Raises InvalidValueError where the shapes do not fit, InvalidTypeError for a dtype that the "
        "operands\n"
        "do not convert to safely, and UnsupportedError where there is no such library.");
    array_class.attr("__matmul__") = nb::cpp_function(
        [](nb::handle self, nb::handle other) -> nb::object {
            if (!is_array(other)) return not_implemented("matmul", other);
            return nb::cast(matmul({self}, {other}, {nb::none()}, {nb::none()}, std::nullopt));
        },
        nb::is_method(), nb::is_operator(), nb::scope(array_class), nb::name("__matmul__"),
        nb::arg("other").none(), nb::sig("def __matmul__(self, other: Array, /) -> Array"));
    m.def(
        "set_matmul_precision",
        [](const std::string& precision) {
            if (precision != "float32" && precision != "tf32") {
                throw error(ErrorKind::value, {.call = "set_matmul_precision",
                                               .argument = "precision",
                                               .expected = "'float32' or 'tf32'",
                                               .got = str("'", precision, "'")});
            }
            ops::set_matmul_precision(precision == "tf32" ? ops::MatmulPrecision::tf32
                                                          : ops::MatmulPrecision::exact);
        },
        nb::arg("precision"),
        "How float32 matrices multiply: 'float32' (default), or 'tf32': inputs rounded to 10 bits.");
    m.def(
        "matmul_precision",
        [] { return ops::matmul_precision() == ops::MatmulPrecision::tf32 ? "tf32" : "float32"; },
        "The present setting; PYGPUKIT_ALLOW_TF32=1 makes 'tf32' the first one.");
}

}  // namespace gpk::python
