#include "bindings/common.hpp"

NB_MODULE(_native, m) {
    using namespace gpk::python;
    m.attr("__version__") = PYGPUKIT_VERSION;
    bind_errors(m);
    bind_runtime(m);
    bind_array(m);
    bind_elementwise(m);
    bind_functions(m);
    bind_jit(m);
    bind_io(m);
    bind_llm(m);
    bind_benchmark(m);
}
