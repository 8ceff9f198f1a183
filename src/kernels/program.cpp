#include "kernels/program.h"

#include <algorithm>

#include "core/error.h"
#include "core/hash.h"

namespace flashcore {

std::string_view to_string(Operand operand) {
  constexpr std::array<std::string_view, kOperandCount> kNames = {
      "q",          "k",         "v",       "o",       "lse",          "descale_q",
      "descale_k",  "descale_v", "sink",    "alibi",   "cu_seqlens_q", "cu_seqlens_kv",
      "seqused_kv", "seqused_q", "tensor0", "tensor1", "tensor2",      "tensor3",
      "tensor4",    "tensor5",   "tensor6", "tensor7", "block_table",  "amax"};
  return kNames.at(static_cast<std::size_t>(operand));
}

void Step::write_addresses(const Addresses& addresses, std::span<std::byte> params) const {
  for (const Relocation& relocation : relocations)
    std::memcpy(params.data() + relocation.offset, &addresses[relocation.of.index()], sizeof(void*));
}

bool Program::has_tensor_maps() const {
  return std::any_of(steps.begin(), steps.end(), [](const Step& step) { return !step.launch.tensor_maps.empty(); });
}

namespace {

// In fingerprints, which stored results hold: workspaces keep the numbers after the eight operands that there were at
// first, and later operands come after those.
std::size_t stored_number(AddressOf of) {
  constexpr std::size_t kFirstOperands = 8;
  if (of.index() < kFirstOperands) return of.index();
  return of.index() < kOperandCount ? of.index() + kMaxWorkspaces : of.index() - kOperandCount + kFirstOperands;
}

void add_step(Hasher& hasher, const Step& step) {
  const LaunchSpec& launch = step.launch;
  for (const Dim3& d : {launch.grid, launch.block, launch.cluster}) hasher.add(fmt::format("{} {} {}", d.x, d.y, d.z));
  hasher.add(fmt::format("{} {}", launch.shared_bytes, launch.programmatic));
  if (launch.kernel != 0) hasher.add(fmt::format("kernel {}", launch.kernel));
  for (std::size_t i = 0; i < launch.tensor_maps.size(); ++i) {
    const TensorMapSpec& map = launch.tensor_maps[i];
    for (const std::uint32_t extent : map.box) hasher.add(std::to_string(extent) + " ");
    hasher.add(
        fmt::format("swizzle {} of {}", static_cast<unsigned>(map.swizzle), stored_number(step.map_addresses[i])));
  }
  for (const Step::Relocation& relocation : step.relocations)
    hasher.add(fmt::format("{} to {}", stored_number(relocation.of), relocation.offset));
  hasher.add({reinterpret_cast<const char*>(launch.params.data()), launch.params.size()});
}

// Where workspaces that lie one after another begin.
constexpr std::size_t kWorkspaceAlignment = 256;
std::size_t aligned(std::size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

bool uses_workspace(const Step& step, std::size_t workspace) {
  return std::any_of(step.relocations.begin(), step.relocations.end(),
                     [&](const Step::Relocation& r) { return r.of == AddressOf::workspace(workspace); });
}

}  // namespace

std::string Program::fingerprint() const {
  Hasher hasher;
  for (const Workspace& workspace : workspaces)
    hasher.add(fmt::format("{} bytes {}", workspace.bytes, static_cast<int>(workspace.contents)));
  for (const Step& step : steps) add_step(hasher, step);
  return hasher.hex();
}

bool Program::is_constant(std::size_t workspace) const {
  return std::any_of(steps.begin(), steps.end(),
                     [&](const Step& step) { return step.constant && uses_workspace(step, workspace); });
}

bool Program::is_reusable(std::size_t workspace) const {
  return std::any_of(steps.begin(), steps.end(),
                     [&](const Step& step) { return step.reusable && uses_workspace(step, workspace); });
}

void Program::validate() const {
  FC_CHECK(workspaces.size() <= kMaxWorkspaces);
  for (const Step& step : steps) {
    const std::vector<std::byte>& params = step.launch.params;
    if (params.size() > kMaxParamBytes)
      throw_internal("a launch takes {} bytes of parameters, more than {}", params.size(), kMaxParamBytes);
    FC_CHECK(step.map_addresses.size() == step.launch.tensor_maps.size());
    FC_CHECK(!step.launch.programmatic || workspaces.empty());
    FC_CHECK((!step.constant && !step.reusable) || step.launch.tensor_maps.empty());
    const auto is_known = [&](AddressOf of) { return of.index() < kOperandCount + workspaces.size(); };
    for (const Step::Relocation& relocation : step.relocations) {
      if (relocation.offset + sizeof(void*) > params.size() || !is_known(relocation.of))
        throw_internal("an address goes to byte {} of {} bytes of parameters", relocation.offset, params.size());
      const auto at = params.begin() + static_cast<std::ptrdiff_t>(relocation.offset);
      if (std::any_of(at, at + sizeof(void*), [](std::byte b) { return b != std::byte{0}; }))
        throw_internal("the parameters hold something at byte {}, where an address goes", relocation.offset);
    }
    for (std::size_t i = 0; i < step.map_addresses.size(); ++i)
      FC_CHECK(is_known(step.map_addresses[i]) && step.launch.tensor_maps[i].address == nullptr);
  }
  for (std::size_t i = 0; i < workspaces.size(); ++i)
    FC_CHECK((!is_constant(i) && !is_reusable(i)) || workspaces[i].contents == Workspace::Contents::kScratch);
}

LoadedProgram::LoadedProgram(Device& device, Program program, std::shared_ptr<Module> module, const void* somewhere)
    : device_(&device), program_(std::move(program)), module_(std::move(module)) {
  program_.validate();
  set_workspaces();
  for (const Step& step : program_.steps) {
    LaunchSpec& launch = encoded_.emplace_back(step.launch);
    if (step.empty()) continue;
    for (TensorMapSpec& map : launch.tensor_maps) map.address = somewhere;
    device.encode_tensor_maps(launch);
  }
}

std::size_t LoadedProgram::constant_bytes() const {
  const bool has_work = std::any_of(program_.steps.begin(), program_.steps.end(),
                                    [](const Step& step) { return step.constant && !step.empty(); });
  std::size_t bytes = 0;
  for (std::size_t i = 0; has_work && i < program_.workspaces.size(); ++i)
    if (program_.is_constant(i)) bytes += aligned(program_.workspaces[i].bytes);
  return bytes;
}

std::string LoadedProgram::constant_key() const {
  Hasher hasher;
  for (std::size_t i = 0; i < program_.workspaces.size(); ++i)
    if (program_.is_constant(i)) hasher.add(fmt::format("{} of {} bytes", i, program_.workspaces[i].bytes));
  for (const Step& step : program_.steps)
    if (step.constant) add_step(hasher, step);
  return hasher.hex();
}

Addresses LoadedProgram::constants_in(void* memory) const {
  Addresses addresses{};
  std::size_t at = 0;
  for (std::size_t i = 0; i < program_.workspaces.size(); ++i) {
    if (!program_.is_constant(i)) continue;
    addresses[AddressOf::workspace(i).index()] = static_cast<std::byte*>(memory) + at;
    at += aligned(program_.workspaces[i].bytes);
  }
  return addresses;
}

void LoadedProgram::make_constants(void* memory) const {
  const Addresses addresses = constants_in(memory);
  for (const Step& step : program_.steps) {
    if (!step.constant || step.empty()) continue;
    LaunchSpec launch = step.launch;
    step.write_addresses(addresses, launch.params);
    device_->launch(*module_, launch);
  }
}

void LoadedProgram::keep_constants(void* memory) {
  constants_ = constants_in(memory);
  set_workspaces();
}

void LoadedProgram::set_workspaces() {
  workspaces_ = program_.workspaces;
  for (std::size_t i = 0; i < workspaces_.size(); ++i)
    if (constants_ && program_.is_constant(i)) workspaces_[i].bytes = 0;
  workspaces_beside_reused_ = workspaces_;
  for (std::size_t i = 0; i < workspaces_.size(); ++i)
    if (is_reused(i)) workspaces_beside_reused_[i].bytes = 0;
}

bool LoadedProgram::is_reused(std::size_t workspace) const {
  return std::any_of(program_.steps.begin(), program_.steps.end(),
                     [&](const Step& step) { return is_reused(step) && uses_workspace(step, workspace); });
}

std::size_t LoadedProgram::reusable_bytes() const {
  const bool has_work = std::any_of(program_.steps.begin(), program_.steps.end(),
                                    [&](const Step& step) { return is_reused(step) && !step.empty(); });
  std::size_t bytes = 0;
  for (std::size_t i = 0; has_work && i < program_.workspaces.size(); ++i)
    if (is_reused(i)) bytes += aligned(program_.workspaces[i].bytes);
  return bytes;
}

std::string LoadedProgram::reusable_key() const {
  Hasher hasher;
  for (std::size_t i = 0; i < program_.workspaces.size(); ++i)
    if (is_reused(i)) hasher.add(fmt::format("{} of {} bytes", i, program_.workspaces[i].bytes));
  for (const Step& step : program_.steps)
    if (is_reused(step)) add_step(hasher, step);
  return hasher.hex();
}

void LoadedProgram::make_reusable(void* stream, const Addresses& operands, void* memory) const {
  Addresses addresses = operands;
  add_reused(memory, addresses);
  for (std::size_t i = 0; i < program_.steps.size(); ++i)
    if (is_reused(program_.steps[i])) enqueue(stream, i, addresses);
}

void LoadedProgram::add_reused(const void* memory, Addresses& addresses) const {
  std::size_t at = 0;
  for (std::size_t i = 0; i < program_.workspaces.size(); ++i) {
    if (!is_reused(i)) continue;
    addresses[AddressOf::workspace(i).index()] = static_cast<const std::byte*>(memory) + at;
    at += aligned(program_.workspaces[i].bytes);
  }
}

void LoadedProgram::add_constants(Addresses& addresses) const {
  for (std::size_t i = 0; constants_ && i < workspaces_.size(); ++i) {
    const std::size_t index = AddressOf::workspace(i).index();
    if ((*constants_)[index]) addresses[index] = (*constants_)[index];
  }
}

void LoadedProgram::launch_on(void* stream, const Addresses& given, const void* reused) const {
  Addresses addresses = given;
  add_constants(addresses);
  if (reused) add_reused(reused, addresses);
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const Step& step = program_.steps[i];
    if ((step.constant && constants_) || (reused && is_reused(step))) continue;
    enqueue(stream, i, addresses);
  }
}

void LoadedProgram::enqueue(void* stream, std::size_t number, const Addresses& addresses) const {
  const Step& step = program_.steps[number];
  if (step.empty()) return;
  const LaunchSpec& encoded = encoded_[number];
  alignas(64) std::byte bytes[Program::kMaxParamBytes];
  const std::span<std::byte> params(bytes, encoded.params.size());
  std::memcpy(params.data(), encoded.params.data(), params.size());
  step.write_addresses(addresses, params);
  for (std::size_t m = 0; m < step.map_addresses.size(); ++m)
    device_->readdress_tensor_map(step.launch.tensor_maps[m], addresses[step.map_addresses[m].index()], params);
  device_->launch_on(stream, *module_, encoded, params);
}

Launch bind_program(Device& device, const Program& program, std::shared_ptr<Module> module, Addresses addresses,
                    BoundWorkspaces* bound_workspaces) {
  program.validate();
  std::vector<std::shared_ptr<Buffer>> workspaces;
  for (std::size_t i = 0; i < program.workspaces.size(); ++i) {
    workspaces.push_back(device.allocate(program.workspaces[i].bytes));
    // NaN where a launch may find anything: who reads what he has not written is seen.
    const bool is_scratch = program.workspaces[i].contents == Workspace::Contents::kScratch;
    device.fill(workspaces.back()->data(), is_scratch ? 0xff : 0, program.workspaces[i].bytes);
    addresses[AddressOf::workspace(i).index()] = workspaces.back()->data();
  }
  if (bound_workspaces) *bound_workspaces = {program.workspaces, workspaces};
  std::vector<LaunchSpec> bound;
  for (const Step& step : program.steps) {
    if (step.empty()) continue;
    LaunchSpec launch = step.launch;
    step.write_addresses(addresses, launch.params);
    for (std::size_t i = 0; i < step.map_addresses.size(); ++i)
      launch.tensor_maps[i].address = addresses[step.map_addresses[i].index()];
    device.encode_tensor_maps(launch);
    bound.push_back(std::move(launch));
  }
  return [&device, module = std::move(module), workspaces = std::move(workspaces), bound = std::move(bound)] {
    for (const LaunchSpec& launch : bound) device.launch(*module, launch);
  };
}

}  // namespace flashcore
