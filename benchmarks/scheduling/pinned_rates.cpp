#include "pinned_rates.hpp"

#include "harness.hpp"

namespace bench {

PinnedRates::PinnedRates(gpk::Device& device, std::size_t bytes)
    : source(device, bytes),
      target(device, bytes),
      up(device, bytes),
      down(device, bytes),
      device_(device),
      in_(gpk::Stream::create_for(nullptr, device)),
      out_(gpk::Stream::create_for(nullptr, device)) {
    device.synchronize();
}

double PinnedRates::to_device() {
    return static_cast<double>(source.bytes()) * 1e-9 / seconds_of([&] {
               device_.driver().copy_to_device(in_->handle(), up.pointer(), source.data(), source.bytes());
               in_->synchronize();
           });
}

double PinnedRates::to_host() {
    return static_cast<double>(target.bytes()) * 1e-9 / seconds_of([&] {
               device_.driver().copy_to_host(out_->handle(), target.data(), down.pointer(), target.bytes());
               out_->synchronize();
           });
}

double PinnedRates::each_way() {
    return static_cast<double>(source.bytes()) * 1e-9 / seconds_of([&] {
               device_.driver().copy_to_device(in_->handle(), up.pointer(), source.data(), source.bytes());
               device_.driver().copy_to_host(out_->handle(), target.data(), down.pointer(), target.bytes());
               in_->synchronize();
               out_->synchronize();
           });
}

}  // namespace bench
