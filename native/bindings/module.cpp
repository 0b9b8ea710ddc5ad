#include "bindings/errors.hpp"

NB_MODULE(_native, m) {
    using namespace gpk::python;
#ifdef NDEBUG
    // What is alive when the interpreter ends (a global, a daemon thread's array) is no fault to print.
    nb::set_leak_warnings(false);
#endif
    m.attr("__version__") = PYGPUKIT_VERSION;
    bind_errors(m);
    bind_runtime(m);
    bind_array(m);
    bind_dlpack(m);
    bind_elementwise(m);
    bind_functions(m);
    bind_products(m);
    bind_jit(m);
    bind_io(m);
    bind_llm(m);
    bind_observe(m);
    bind_scheduler(m);
    bind_transfer(m);
    bind_memory(m);
    bind_benchmark(m);
    bind_partition(m);
    bind_pacing(m);
    bind_sampling(m);
    bind_quantize(m);
    bind_experts(m);
    bind_rope(m);
    bind_lstm(m);
    bind_conv1d(m);
    bind_attention(m);
    bind_norm(m);
    turn_signature_errors(m);
}
