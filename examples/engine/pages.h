// A pool of pages that requests take one by one and give back together.
#pragma once

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace engine {

class PagePool {
 public:
  explicit PagePool(std::int32_t pages) : free_(static_cast<std::size_t>(pages)) {
    std::iota(free_.rbegin(), free_.rend(), 0);  // page 0 is taken first
    pages_ = pages;
  }
  std::int32_t take() {
    if (free_.empty()) throw std::logic_error("the pool has no page left, and more were promised than it has");
    const std::int32_t page = free_.back();
    free_.pop_back();
    peak_ = used() > peak_ ? used() : peak_;
    return page;
  }
  void give_back(const std::vector<std::int32_t>& pages) { free_.insert(free_.end(), pages.begin(), pages.end()); }
  std::int32_t pages() const { return pages_; }
  std::int32_t used() const { return pages_ - static_cast<std::int32_t>(free_.size()); }
  std::int32_t peak() const { return peak_; }

 private:
  std::vector<std::int32_t> free_;
  std::int32_t pages_ = 0, peak_ = 0;
};

}  // namespace engine
