#pragma once
#include <cstdint>
#include <functional>

namespace flashcore {

// Cores that the calling thread may run on (affinity).
int usable_cores();
// The same, and no more than the control group's quota of CPU time gives (cpu_quota), rounded up.
int hardware_threads();

// Calls body(i) for 0 <= i < count on up to `threads` threads (0 = hardware_threads()), in no order; returns when all
// are done. The first exception is rethrown after the others have stopped.
void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body);

}  // namespace flashcore
