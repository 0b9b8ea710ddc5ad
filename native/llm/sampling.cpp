#include "llm/sampling.hpp"

#include <cmath>

#include "base/error.hpp"

namespace gpk::llm {

void Sampling::validate() const {
    const auto require = [](bool holds, const char* argument, const char* expected, const std::string& got) {
        if (!holds) {
            throw error(ErrorKind::value,
                        {.call = "generate", .argument = argument, .expected = expected, .got = got});
        }
    };
    // They are float32 on the device.
    const auto finite = [](double value) { return std::isfinite(static_cast<float>(value)); };
    require(std::isfinite(temperature) && temperature >= 0, "temperature", "a number >= 0", str(temperature));
    require(top_k >= 0, "top_k", "a number >= 0", str(top_k));
    require(top_p > 0 && top_p <= 1, "top_p", "a number above 0, at most 1", str(top_p));
    require(min_p >= 0 && min_p <= 1, "min_p", "a number from 0 to 1", str(min_p));
    require(finite(repetition) && static_cast<float>(repetition) > 0, "repetition_penalty", "a number > 0",
            str(repetition));
    require(finite(presence), "presence_penalty", "a finite number", str(presence));
    require(finite(frequency), "frequency_penalty", "a finite number", str(frequency));
}

}  // namespace gpk::llm
