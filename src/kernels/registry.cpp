#include "kernels/registry.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {
namespace {

struct Registry {
  std::vector<std::unique_ptr<Family>> owned = make_all_families();
  std::vector<const Family*> sorted;

  Registry() { sort(); }
  void sort() {
    sorted.clear();
    for (const auto& family : owned) sorted.push_back(family.get());
    std::sort(sorted.begin(), sorted.end(), [](const Family* a, const Family* b) { return a->name() < b->name(); });
  }
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

ScopedFamily::ScopedFamily(std::unique_ptr<Family> family) : family_(family.get()) {
  registry().owned.push_back(std::move(family));
  registry().sort();
}

ScopedFamily::~ScopedFamily() {
  std::erase_if(registry().owned, [this](const auto& family) { return family.get() == family_; });
  registry().sort();
}

const std::vector<const Family*>& all_families() { return registry().sorted; }

const Family& family_by_name(std::string_view name) {
  std::string known;
  for (const Family* family : all_families()) {
    if (family->name() == name) return *family;
    known += (known.empty() ? "" : ", ") + family->name();
  }
  throw_bad_input("unknown family '{}'; known: {}", excerpt(name), known);
}

}  // namespace flashcore
