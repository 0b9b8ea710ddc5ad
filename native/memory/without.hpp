// Without: lets go of a mutex that the calling thread holds, as long as it lives.
#pragma once

#include <mutex>

namespace gpk {

class Without {
   public:
    explicit Without(std::mutex& mutex) : mutex_(mutex) { mutex_.unlock(); }
    ~Without() { mutex_.lock(); }
    Without(const Without&) = delete;
    Without& operator=(const Without&) = delete;

   private:
    std::mutex& mutex_;
};

}  // namespace gpk
