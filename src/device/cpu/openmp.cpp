#include "device/cpu/openmp.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

namespace flashcore {
namespace {

std::atomic<const OpenMp*> g_openmp{nullptr};
// Of dl_phdr_info::dlpi_adds when there was none yet.
std::atomic<unsigned long long> g_searched{0};
std::atomic<bool> g_forked{false};

const int g_fork_noticed = pthread_atfork(nullptr, nullptr, [] { g_forked.store(true); });

// The process was forked before this library was loaded: the parent may have used a runtime that the child inherited.
// The kernel knows (PF_FORKNOEXEC among the flags of proc(5), the ninth field; the second is in parentheses).
bool forked_without_exec() {
  constexpr unsigned long kForkedNoExec = 0x40;
  std::ifstream file("/proc/self/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  std::size_t at = line.rfind(')');
  for (int field = 2; field < 9 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
  return at != std::string::npos && (std::strtoul(line.c_str() + at, nullptr, 10) & kForkedNoExec) != 0;
}

bool is_openmp(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const std::string_view known : {"libgomp", "libiomp5", "libomp"}) {
    // "libgomp.so.1", "libgomp-a34b3233.so.1"; not "libompd.so".
    if (name.starts_with(known) && name.size() > known.size() &&
        (name[known.size()] == '.' || name[known.size()] == '-'))
      return name.find(".so") != std::string_view::npos;
  }
  return false;
}

struct Search {
  unsigned long long adds = 0;
  std::string first, of_pytorch;
};

int look_at_library(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  search.adds = info->dlpi_adds;
  if (info->dlpi_name == nullptr || !is_openmp(info->dlpi_name)) return 0;
  const std::string path = info->dlpi_name;
  if (search.first.empty()) search.first = path;
  if (search.of_pytorch.empty() && path.find("torch") != std::string::npos) search.of_pytorch = path;
  return 0;
}

int count_additions(dl_phdr_info* info, std::size_t, void* data) {
  *static_cast<unsigned long long*>(data) = info->dlpi_adds;
  return 1;  // every library has the same number
}

const OpenMp* entry_points(const std::string& path) {
  if (path.empty()) return nullptr;
  // The handle is kept: the runtime's threads live on.
  void* library = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  auto found = std::make_unique<OpenMp>();
  found->parallel = reinterpret_cast<OpenMp::Parallel>(dlsym(library, "GOMP_parallel"));
  found->max_threads = reinterpret_cast<int (*)()>(dlsym(library, "omp_get_max_threads"));
  found->in_parallel = reinterpret_cast<int (*)()>(dlsym(library, "omp_in_parallel"));
  if (found->parallel != nullptr && found->max_threads != nullptr && found->in_parallel != nullptr)
    return found.release();
  dlclose(library);
  return nullptr;
}

}  // namespace

const OpenMp* loaded_openmp() {
  if (g_forked.load(std::memory_order_relaxed)) return nullptr;
  if (const OpenMp* known = g_openmp.load(std::memory_order_acquire)) return known;
  // Searched again when a library was loaded since: flashcore may be imported before PyTorch.
  unsigned long long adds = 0;
  dl_iterate_phdr(count_additions, &adds);
  if (adds == g_searched.load(std::memory_order_relaxed)) return nullptr;
  if (g_fork_noticed != 0 || forked_without_exec()) {
    g_forked.store(true);
    return nullptr;
  }
  Search search;
  dl_iterate_phdr(look_at_library, &search);
  const OpenMp* found = entry_points(search.of_pytorch);
  if (found == nullptr && search.first != search.of_pytorch) found = entry_points(search.first);
  if (found == nullptr) {
    g_searched.store(search.adds, std::memory_order_relaxed);
    return nullptr;
  }
  const OpenMp* before = nullptr;
  // Of two threads that both searched, one's handle stays open besides.
  if (!g_openmp.compare_exchange_strong(before, found, std::memory_order_acq_rel)) {
    delete found;
    return before;
  }
  return found;
}

}  // namespace flashcore
