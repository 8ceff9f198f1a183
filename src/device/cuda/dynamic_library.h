#pragma once
// Libraries found at run time, so that one binary runs with and without a GPU, a toolkit or a driver.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace flashcore::cuda {

// An opened library. Never closed: NVRTC and the driver register exit handlers that must stay mapped.
class DynamicLibrary {
 public:
  // Opens the first candidate that the loader accepts. On failure returns none and, in `why`, what was tried.
  static std::optional<DynamicLibrary> open_first(const std::vector<std::string>& candidates, std::string* why);

  void* symbol(const char* name) const;              // null if it is not there
  const std::string& path() const { return path_; }  // where the loader found it

 private:
  DynamicLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* handle_;
  std::string path_;
};

// Where the search looks, replaceable by tests.
struct SearchPlaces {
  std::filesystem::path executable;                     // its folder's parents may hold a .venv
  std::function<const char*(const char*)> environment;  // getenv
  std::vector<std::filesystem::path> prefixes = {"/usr", "/usr/local", "/opt"};
};
SearchPlaces default_places();

// A library that was found and not taken.
struct PassedOver {
  std::string path, why;
};

// What to hand to dlopen, in order. $FLASHCORE_NVRTC (a file, or a folder that holds one) excludes everything else:
// whoever names a compiler wants that one or an error. Of what the search itself finds, only files that nobody but the
// user and root could have put there (core/trusted_path.h), with symbolic links resolved; the others go to
// `passed_over`. Names without a folder are the loader's to find.
std::vector<std::string> nvrtc_candidates(const SearchPlaces& places, std::vector<PassedOver>* passed_over = nullptr);
std::vector<std::string> driver_candidates();
std::vector<std::string> nvml_candidates();

}  // namespace flashcore::cuda
