#pragma once
// What a fork amid the library's work leaves to the child. Only the forking thread lives on there: a lock that another
// thread held is held for ever, and what it was changing is half changed. Therefore
// - a fork waits until no other thread is inside a call that plans, opens, closes or allocates (InsideLibrary), and
//   nothing of those is half done in the child;
// - launches, which fork does not wait for, hold no lock but those of the handle tables and of the allocations while
//   they look, and change nothing that the child needs; it gets those locks anew (ForkableMutex::renew);
// - the thread pool holds no lock either, and the child starts one of its own (device/cpu/thread_pool.h).

#include <pthread.h>

namespace flashcore::api {

// std::shared_mutex for a child to renew, and writers first: eight threads that launch without a pause would otherwise
// keep a ninth from ever closing its plan.
class ForkableMutex {
 public:
  ForkableMutex() { renew(); }
  ~ForkableMutex() { pthread_rwlock_destroy(&lock_); }
  ForkableMutex(const ForkableMutex&) = delete;
  ForkableMutex& operator=(const ForkableMutex&) = delete;

  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

  // Free again, whoever held it: in a forked child only. (Unlocking there what the parent locked for writing is not
  // enough: glibc tells writers from readers by the thread's number, which is another one in the child.)
  void renew();

 private:
  pthread_rwlock_t lock_;
};

// While it lives no other thread forks. May be nested; a thread that forks inside it waits for nobody.
class InsideLibrary {
 public:
  InsideLibrary();
  ~InsideLibrary();
  InsideLibrary(const InsideLibrary&) = delete;
  InsideLibrary& operator=(const InsideLibrary&) = delete;
};

// Called in each forked child before fork() returns. Once per function, when the library is loaded.
void renew_in_child(void (*renew)());

}  // namespace flashcore::api
