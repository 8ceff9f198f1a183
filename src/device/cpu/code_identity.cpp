#include "device/cpu/code_identity.h"

#include <elf.h>
#include <fmt/format.h>
#include <hwy/targets.h>
#include <link.h>

#include <cstdint>
#include <cstring>

#include "core/environment_error.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "device/cpu/cpu_threads.h"
#include "device/cpu/openmp.h"

namespace flashcore {
namespace {

struct ModuleSearch {
  std::uintptr_t address;
  bool found = false;
  std::string file, build_id;
};

// The build id among the notes of a segment, in hexadecimal; empty if there is none.
std::string build_id_of(const char* notes, std::size_t bytes) {
  const auto padded = [](std::size_t size) { return (size + 3) / 4 * 4; };
  for (std::size_t at = 0; at + sizeof(ElfW(Nhdr)) <= bytes;) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes + at, sizeof header);
    const std::size_t name = at + sizeof header, data = name + padded(header.n_namesz);
    if (data + header.n_descsz > bytes) break;
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 && std::memcmp(notes + name, "GNU", 4) == 0) {
      std::string text;
      for (std::size_t i = 0; i < header.n_descsz; ++i)
        text += fmt::format("{:02x}", static_cast<unsigned char>(notes[data + i]));
      return text;
    }
    at = data + padded(header.n_descsz);
  }
  return "";
}

int look_at_module(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<ModuleSearch*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && search.address >= begin && search.address < begin + segment.p_memsz)
      search.found = true;
  }
  if (!search.found) return 0;
  search.file = info->dlpi_name;
  for (int i = 0; i < info->dlpi_phnum && search.build_id.empty(); ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type == PT_NOTE)
      search.build_id = build_id_of(reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr), segment.p_memsz);
  }
  return 1;
}

}  // namespace

std::string module_identity(const void* address) {
  ModuleSearch search{reinterpret_cast<std::uintptr_t>(address), false, "", ""};
  dl_iterate_phdr(look_at_module, &search);
  if (!search.found)
    throw_environment("no loaded program or library holds the address {}: its code cannot be told from another's",
                      address);
  if (!search.build_id.empty()) return search.build_id;
  return Hasher().add(read_file(search.file.empty() ? "/proc/self/exe" : search.file)).hex();
}

namespace {

std::string openmp_identity() {
  const OpenMp* openmp = loaded_openmp();
  if (openmp == nullptr) return "";
  static const std::string runtime = module_identity(reinterpret_cast<const void*>(openmp->parallel));  // it stays
  return " openmp " + runtime;
}

}  // namespace

std::string cpu_code_identity() {
  static const std::string modules = module_identity(reinterpret_cast<const void*>(&cpu_code_identity)) + " " +
                                     module_identity(reinterpret_cast<const void*>(&hwy::SupportedTargets)) +
                                     fmt::format(" {:x}", hwy::SupportedTargets());
  return modules + openmp_identity() + fmt::format(" {}", cpu_threads());
}

}  // namespace flashcore
