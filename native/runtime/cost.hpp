// What a piece of work declares of itself, for pacing and for the trace.
#pragma once

namespace gpk {

struct Cost {
    double flops = 0;
    double bytes = 0;  // read and written in device memory
};

}  // namespace gpk
