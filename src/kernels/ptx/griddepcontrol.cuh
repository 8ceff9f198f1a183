#pragma once
// Programmatic dependent launch. PTX ISA, "griddepcontrol". Without the launch attribute both do nothing.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Until the launch before this one has ended and what it wrote can be read. Before the first access to global memory.
FC_DEVICE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The next launch may start as soon as every CTA has said so or ended.
FC_DEVICE void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace flashcore::ptx
