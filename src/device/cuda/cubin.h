#pragma once
// Reads a cubin (an ELF64 image) far enough to tell whether two kernels are the same machine code.

#include <string>
#include <string_view>

namespace flashcore::cuda {

// Hash of what the GPU executes: all .text sections (the kernel's and those of functions it calls), the constant banks
// the code reads literals from (.nv.constant*), and the places that loading patches (.rel/.rela of those). Symbol
// names, debug data, notes and section order are left out, so a template argument that changes only the kernel's
// mangled name leaves the hash as it is. Error kInternal if the image is not a whole ELF64 file.
std::string hash_machine_code(std::string_view cubin);

}  // namespace flashcore::cuda
