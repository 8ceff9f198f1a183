#include "api/fork_gate.h"

#include <array>
#include <cstddef>

namespace flashcore::api {
namespace {

thread_local int t_depth = 0;

// Never destroyed, and there before anything of the library runs.
ForkableMutex& gate() {
  static auto* mutex = new ForkableMutex;
  return *mutex;
}

std::array<void (*)(), 4> g_renewals{};
std::size_t g_renewal_count = 0;

void prepare() {
  if (t_depth == 0) gate().lock();
}
void in_parent() {
  if (t_depth == 0) gate().unlock();
}
void in_child() {
  gate().renew();
  if (t_depth > 0) gate().lock_shared();
  for (std::size_t i = 0; i < g_renewal_count; ++i) g_renewals[i]();
}

// Fails for want of memory alone; forks are then as dangerous as without.
[[maybe_unused]] const int g_registered = (gate(), pthread_atfork(prepare, in_parent, in_child));

}  // namespace

void ForkableMutex::renew() {
  pthread_rwlockattr_t writers_first;
  pthread_rwlockattr_init(&writers_first);
  pthread_rwlockattr_setkind_np(&writers_first, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&lock_, &writers_first);
  pthread_rwlockattr_destroy(&writers_first);
}

InsideLibrary::InsideLibrary() {
  if (t_depth++ == 0) gate().lock_shared();
}
InsideLibrary::~InsideLibrary() {
  if (--t_depth == 0) gate().unlock_shared();
}

void renew_in_child(void (*renew)()) {
  if (g_renewal_count < g_renewals.size()) g_renewals[g_renewal_count++] = renew;
}

}  // namespace flashcore::api
