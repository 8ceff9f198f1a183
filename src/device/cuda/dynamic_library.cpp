#include "device/cuda/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>

#include "core/trusted_path.h"

namespace flashcore::cuda {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kNvrtcNames = {"libnvrtc.so.13", "libnvrtc.so.12"};

// Sub-folders of `folder` whose name starts with `prefix`, newest name first. A missing folder has none.
std::vector<fs::path> folders_starting_with(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename().string().starts_with(prefix) && it->is_directory(ignored)) found.push_back(it->path());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

std::vector<std::string> libraries_in(const fs::path& folder) {
  std::vector<std::string> found;
  for (const std::string& name : kNvrtcNames) {
    std::error_code ignored;
    if (fs::exists(folder / name, ignored)) found.push_back((folder / name).string());
  }
  return found;
}

class Search {
 public:
  explicit Search(std::vector<PassedOver>* passed_over) : passed_over_(passed_over) {}

  void add_name(const std::string& name) { candidates_.push_back(name); }

  void add_folder(const fs::path& folder) {
    for (const std::string& file : libraries_in(folder)) {
      // What is opened later is the very file that is looked at here.
      std::error_code error;
      const std::string resolved = fs::canonical(file, error).string();
      const std::string why = error ? error.message() : why_untrusted(resolved);
      if (why.empty()) candidates_.push_back(resolved);
      else if (passed_over_) passed_over_->push_back({file, why});
    }
  }

  void add_environment(const fs::path& venv) {
    for (const char* lib : {"lib", "lib64"})
      for (const fs::path& python : folders_starting_with(venv / lib, "python3")) {
        add_site_packages(python / "site-packages");
        add_site_packages(python / "dist-packages");
      }
  }

  std::vector<std::string> candidates() && { return std::move(candidates_); }

 private:
  // The wheels nvidia-cuda-nvrtc (13: nvidia/cu13/lib) and nvidia-cuda-nvrtc-cu12 (nvidia/cuda_nvrtc/lib).
  void add_site_packages(const fs::path& packages) {
    add_folder(packages / "nvidia" / "cu13" / "lib");
    add_folder(packages / "nvidia" / "cuda_nvrtc" / "lib");
  }

  std::vector<std::string> candidates_;
  std::vector<PassedOver>* passed_over_;
};

std::string path_of(void* handle, const std::string& asked) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name) return map->l_name;
  return asked;
}

// NVRTC opens libnvrtc-builtins by its bare name, and the wheels of version 13 carry no run path: without this it would
// fail, or take the builtins of another installation that the loader knows. Once loaded, the name resolves to this one.
void preload_builtins_beside(const fs::path& library) {
  std::error_code error;
  for (fs::directory_iterator it(library.parent_path(), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("libnvrtc-builtins.so.")) dlopen(it->path().c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

}  // namespace

std::optional<DynamicLibrary> DynamicLibrary::open_first(const std::vector<std::string>& candidates, std::string* why) {
  std::string tried;
  for (const std::string& candidate : candidates) {
    const bool by_path = candidate.find('/') != std::string::npos;
    if (by_path && fs::path(candidate).filename().string().starts_with("libnvrtc")) preload_builtins_beside(candidate);
    if (void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL))
      return DynamicLibrary(handle, path_of(handle, candidate));
    const char* message = dlerror();
    if (!tried.empty()) tried += "; ";
    tried += message ? message : candidate + ": cannot be opened";
  }
  if (why) *why = tried;
  return std::nullopt;
}

void* DynamicLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

SearchPlaces default_places() {
  SearchPlaces places;
  std::error_code ignored;
  places.executable = fs::read_symlink("/proc/self/exe", ignored);
  places.environment = [](const char* name) -> const char* { return std::getenv(name); };
  return places;
}

std::vector<std::string> nvrtc_candidates(const SearchPlaces& places, std::vector<PassedOver>* passed_over) {
  if (const char* chosen = places.environment("FLASHCORE_NVRTC"); chosen && *chosen) {
    std::error_code ignored;
    if (fs::is_directory(chosen, ignored))
      if (auto named = libraries_in(chosen); !named.empty()) return named;
    // A bare name would go through the loader's search and be something else than what was named.
    return {fs::absolute(chosen, ignored).string()};
  }
  Search search(passed_over);
  if (!places.executable.empty())
    for (fs::path folder = places.executable.parent_path(); folder.has_relative_path(); folder = folder.parent_path())
      for (const fs::path& venv : folders_starting_with(folder, ".venv")) search.add_environment(venv);
  if (const char* venv = places.environment("VIRTUAL_ENV"); venv && *venv) search.add_environment(venv);
  for (const std::string& name : kNvrtcNames) search.add_name(name);
  for (const fs::path& prefix : places.prefixes) {
    for (const fs::path& toolkit : folders_starting_with(prefix, "cuda")) {
      search.add_folder(toolkit / "lib64");
      search.add_folder(toolkit / "lib");
      for (const fs::path& target : folders_starting_with(toolkit / "targets", "")) search.add_folder(target / "lib");
    }
    search.add_environment(prefix);
    for (const fs::path& folder : folders_starting_with(prefix, ""))
      for (const fs::path& venv : folders_starting_with(folder, ".venv")) search.add_environment(venv);
  }
  return std::move(search).candidates();
}

std::vector<std::string> driver_candidates() {
  return {"libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1",
          "/usr/lib/wsl/lib/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"};
}

std::vector<std::string> nvml_candidates() {
  return {"libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/usr/lib64/libnvidia-ml.so.1",
          "/usr/lib/wsl/lib/libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"};
}

}  // namespace flashcore::cuda
