#pragma once
// What the child of a worker does for `flashcore check` besides trials (lab/process/worker.h).

#include "lab/verify/needles.h"
#include "lab/verify/neighbours.h"

namespace flashcore {

inline WorkerTasks verify_tasks() { return {{kNeighbourTask, neighbour_task()}, {kNeedleTask, needle_task()}}; }

}  // namespace flashcore
