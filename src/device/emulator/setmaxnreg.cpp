// setmaxnreg: registers change nothing here, but asking for more than there are hangs the hardware, and so it does
// here.

#include "device/emulator/instructions.h"

namespace flashcore::emulator {
namespace {

struct RegisterOperands {
  int registers;
  bool increase;
  const void* site;
};

std::string describe_registers(const Cta& cta, unsigned wanted, unsigned) {
  return fmt::format("{} registers a thread for its warp; {} are free (setmaxnreg takes from what the launch gave)",
                     wanted, cta.free_registers);
}

void take(Cluster&, Warp&, Operands&) {}

}  // namespace

void setmaxnreg(int registers, bool increase) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  Thread& self = cluster.thread();
  Cta& cta = *self.cta;
  if (registers < 24 || registers > 256 || registers % 8 != 0)
    cluster.fail(fmt::format("setmaxnreg {}: 24 to 256 in steps of 8 are allowed", registers), site);
  cluster.gather(take, nullptr, site);
  int& held = cta.warp_registers[static_cast<std::size_t>(self.warp->index)];
  // One lane does the accounting, the others wait for it at the second gathering.
  if (self.lane == 0) {
    if (increase ? registers < held : registers > held)
      cluster.fail(fmt::format("setmaxnreg.{} to {} registers: warp {} has {}", increase ? "inc" : "dec", registers,
                               self.warp->index, held),
                   site);
    while (registers - held > cta.free_registers) {
      cta.waiting_for_registers.push_back(&self);
      cluster.block({describe_registers, static_cast<unsigned>(registers - held), 0, site});
    }
    cta.free_registers -= registers - held;
    held = registers;
    std::vector<Thread*> waiting;
    waiting.swap(cta.waiting_for_registers);
    for (Thread* thread : waiting) cluster.wake(*thread);
  }
  cluster.gather(take, nullptr, site);
}

}  // namespace flashcore::emulator
