#pragma once
// A family that is another one but for what a subclass changes: its sources, its configs.

#include "kernels/family.h"

namespace flashcore {

class DerivedFamily : public Family {
 public:
  explicit DerivedFamily(const Family& base) : base_(base) {}

  DeviceKind kind() const override { return base_.kind(); }
  std::optional<std::string> why_unsupported(const Problem& p, const DeviceLimits& l) const override {
    return base_.why_unsupported(p, l);
  }
  const ConfigSpace& space() const override { return base_.space(); }
  ConfigValues default_config(const Problem& p, const DeviceLimits& l) const override {
    return base_.default_config(p, l);
  }
  std::optional<std::string> why_invalid(const ConfigValues& c, const Problem& p,
                                         const DeviceLimits& l) const override {
    return base_.why_invalid(c, p, l);
  }
  KernelSource source(const ConfigValues& c, const Problem& p, const DeviceLimits& l) const override {
    return base_.source(c, p, l);
  }
  Program program(const ConfigValues& c, const Problem& p, const DeviceLimits& l,
                  const ProblemLayouts& layouts) const override {
    return base_.program(c, p, l, layouts);
  }
  std::string compile_arch(const DeviceLimits& l) const override { return base_.compile_arch(l); }

 protected:
  const Family& base() const { return base_; }

 private:
  const Family& base_;
};

}  // namespace flashcore
