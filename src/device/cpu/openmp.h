#pragma once
// The OpenMP runtime that somebody else brought into the process (PyTorch's wheels bundle one): its threads spin for
// milliseconds after each of its parallel regions, and threads beside them would have to fight for the cores. Found at
// run time; nothing here links against it.

namespace flashcore {

// Entry points of one loaded runtime. All three kinds (libgomp, libiomp5, libomp) have them.
struct OpenMp {
  using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
  Parallel parallel;     // GOMP_parallel: calls body(data) on each of a team's threads; returns when all have
  int (*max_threads)();  // omp_get_max_threads: of the calling thread (omp_set_num_threads, torch.set_num_threads)
  int (*in_parallel)();  // omp_in_parallel
};

// The runtime that was loaded first, PyTorch's before others; null if there is none, or in a process that was forked
// and has not called exec since: a team of libgomp has no threads there and waits for them for ever. Once found, it
// stays loaded and stays the answer. Takes no lock of ours.
const OpenMp* loaded_openmp();

}  // namespace flashcore
