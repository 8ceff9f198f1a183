#pragma once
// Program: what a candidate becomes for a problem and the layouts of its operands. Kernel launches whose parameters
// hold no address, and where the addresses go. Binding writes them into a copy.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/tensor.h"
#include "device/device.h"

namespace flashcore {

// A tensor of the call. The factors are those of 8-bit operands; sink: logits, alibi: slopes, by query head; the next
// four, of int32, are a ragged batch's boundaries and how many of each sequence's keys and rows count; then
// those of Problem::tensors; the pages of a paged cache; and the largest magnitudes of scores and o, an output.
enum class Operand : std::uint8_t {
  kQ,
  kK,
  kV,
  kO,
  kLse,
  kDescaleQ,
  kDescaleK,
  kDescaleV,
  kSink,
  kAlibi,
  kCuSeqlensQ,
  kCuSeqlensKv,
  kSequsedKv,
  kSequsedQ,
  kTensor0,
  kTensor1,
  kTensor2,
  kTensor3,
  kTensor4,
  kTensor5,
  kTensor6,
  kTensor7,
  kBlockTable,
  kAmax,
};
inline constexpr std::size_t kOperandCount = 24;
// Of the tensor with that number in Problem::tensors.
constexpr Operand operand_of_tensor(std::size_t number) {
  return static_cast<Operand>(static_cast<std::size_t>(Operand::kTensor0) + number);
}
inline constexpr std::size_t kMaxWorkspaces = 3;
inline constexpr std::size_t kAddressCount = kOperandCount + kMaxWorkspaces;
std::string_view to_string(Operand operand);  // "q"

// Device memory that a launch needs besides its operands. Launches may overlap, so each has its own while it runs.
struct Workspace {
  enum class Contents : std::uint8_t {
    kScratch,   // whatever is there
    kLeftZero,  // zero when a launch begins, and again when it has ended
  };
  std::size_t bytes = 0;
  Contents contents = Contents::kScratch;
};

// Whose address: an operand's, or that of a workspace of the program.
class AddressOf {
 public:
  constexpr AddressOf(Operand operand) : index_(static_cast<std::uint8_t>(operand)) {}
  static constexpr AddressOf workspace(std::size_t number) { return AddressOf(kOperandCount + number); }
  constexpr std::size_t index() const { return index_; }  // in Addresses
  bool operator==(const AddressOf&) const = default;

 private:
  constexpr explicit AddressOf(std::size_t index) : index_(static_cast<std::uint8_t>(index)) {}
  std::uint8_t index_;
};

// Device addresses of one call, by AddressOf::index. lse may be null; so are those of operands that the problem has
// not.
using Addresses = std::array<const void*, kAddressCount>;

// One launch of a kernel of the candidate's module.
struct Step {
  struct Relocation {
    std::size_t offset;  // of the 8 bytes in launch.params that are zero until bound
    AddressOf of;
  };
  LaunchSpec launch;  // params without addresses; tensor_maps without theirs
  std::vector<Relocation> relocations;
  std::vector<AddressOf> map_addresses;  // of launch.tensor_maps, in their order
  // It reads parameters alone, so it writes the same to its workspaces whenever it runs, and no other step writes
  // there: who keeps those may leave it out of later launches. Operands among its relocations are not read.
  bool constant = false;
  // It writes the same to its workspaces as long as the operands that it reads hold the same, and no other step writes
  // there: who keeps those may leave it out of later launches meanwhile.
  bool reusable = false;

  template <class Params>
  void set_params(const Params& params) {
    launch.params.assign(sizeof(Params), std::byte{0});
    set_part(0, params);
  }
  // A member of the parameters, whose size is set.
  template <class Part>
  void set_part(std::size_t offset, const Part& part) {
    static_assert(std::is_trivially_copyable_v<Part>);
    Part whole = part;
#if __has_builtin(__builtin_clear_padding)  // what lies between the fields must not enter fingerprint()
    __builtin_clear_padding(&whole);
#endif
    std::memcpy(launch.params.data() + offset, &whole, sizeof(Part));
  }
  void relocate(std::size_t offset, AddressOf of) { relocations.push_back({offset, of}); }
  void add_map(const TensorMapSpec& map, AddressOf of) {
    launch.tensor_maps.push_back(map);
    map_addresses.push_back(of);
  }
  // An empty grid is not a legal launch: a problem without query rows has nothing to do.
  bool empty() const { return launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0; }

  // Writes the addresses into `params`, a copy of launch.params; tensor maps are not touched.
  void write_addresses(const Addresses& addresses, std::span<std::byte> params) const;
};

struct Program {
  std::vector<Step> steps;  // in stream order
  std::vector<Workspace> workspaces;
  int alignment_bytes = 0;  // what addresses of q, k, v, o and their strides in bytes are multiples of; 0: one element

  static constexpr std::size_t kMaxParamBytes = 4096;  // what every CUDA version takes

  // Reads through tensor maps, which cannot repeat an element (stride 0).
  bool has_tensor_maps() const;
  // All launches with their geometry, parameters, relocations and maps, and the workspaces, hashed: equal programs
  // compute the same. Whether a step is constant is left out: bind_program() launches all of them.
  std::string fingerprint() const;
  // Whether a constant step fills the workspace of that number; a reusable one.
  bool is_constant(std::size_t workspace) const;
  bool is_reusable(std::size_t workspace) const;
  // Error kInternal for a relocation outside of the parameters or over bytes that are not zero, for an unknown
  // workspace, for too many parameter bytes, for a workspace beside a programmatic launch: that one may begin
  // before the last launch of its stream has left the workspace; and for a constant or reusable step that reads through
  // tensor maps or leaves zeros.
  void validate() const;
};

// A program whose kernel is loaded.
class LoadedProgram {
 public:
  // Encodes tensor maps. `somewhere` is memory of the device that they point at until a launch says where. The device
  // must outlive this.
  LoadedProgram(Device& device, Program program, std::shared_ptr<Module> module, const void* somewhere);

  const Program& program() const { return program_; }
  // Enqueues all steps on a stream of the caller's, but the constant ones once constants are kept, and the reusable
  // ones where `reused` has what make_reusable() wrote. Allocates nothing; from any number of threads side by side.
  void launch_on(void* stream, const Addresses& addresses, const void* reused = nullptr) const;
  // What each launch needs: as program().workspaces, with 0 bytes for those that are kept.
  std::span<const Workspace> workspaces() const { return workspaces_; }
  // What a launch with `reused` needs.
  std::span<const Workspace> workspaces_beside_reused() const { return workspaces_beside_reused_; }

  // Memory for what the constant steps write; 0: there are none, or they have nothing to do.
  std::size_t constant_bytes() const;
  // Equal for programs whose constant steps write the same, if their modules are.
  std::string constant_key() const;
  // Launches the constant steps, which write to `memory`, on the device's own stream.
  void make_constants(void* memory) const;
  // Before the first launch_on(): `memory` holds what they wrote, and outlives all launches.
  void keep_constants(void* memory);

  // Memory for what reusable steps write, but for constant ones that are kept; 0: launches run none.
  std::size_t reusable_bytes() const;
  // Equal for programs of which each can read what the other's reusable steps wrote, if their modules are.
  std::string reusable_key() const;
  // Enqueues those steps, which write to `memory`. As launch_on(). Of `operands` they read what is among their
  // relocations.
  void make_reusable(void* stream, const Addresses& operands, void* memory) const;

 private:
  bool is_reused(const Step& step) const { return step.reusable && !(step.constant && constants_); }
  bool is_reused(std::size_t workspace) const;
  void add_reused(const void* memory, Addresses& addresses) const;
  void add_constants(Addresses& addresses) const;
  void enqueue(void* stream, std::size_t step, const Addresses& addresses) const;
  Addresses constants_in(void* memory) const;
  void set_workspaces();

  Device* device_;
  Program program_;
  std::vector<LaunchSpec> encoded_;  // of program_.steps, with their tensor maps in the parameters
  std::shared_ptr<Module> module_;
  std::vector<Workspace> workspaces_, workspaces_beside_reused_;
  std::optional<Addresses> constants_;  // of the workspaces that are kept; null for all else
};

// The workspaces of one bound launch.
struct BoundWorkspaces {
  std::vector<Workspace> kinds;
  std::vector<std::shared_ptr<Buffer>> buffers;  // one for each
};

// A launch of all steps on these addresses for good, with workspaces of its own, which `bound_workspaces` is told of:
// what the laboratory judges and times. A plan's launches go without constant steps (api/constant_pool.h), and take no
// longer than that.
Launch bind_program(Device& device, const Program& program, std::shared_ptr<Module> module, Addresses addresses,
                    BoundWorkspaces* bound_workspaces = nullptr);

}  // namespace flashcore
