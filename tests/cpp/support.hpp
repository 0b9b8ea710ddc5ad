// What the tests share.
#pragma once

#include <cstdlib>

#include "runtime/device.hpp"

// The device that the suite runs on: PYGPUKIT_TEST_DEVICE, "cpu" by default.
inline gpk::Device& test_device() {
    const char* name = std::getenv("PYGPUKIT_TEST_DEVICE");
    return gpk::device(name != nullptr && *name != '\0' ? name : "cpu");
}
