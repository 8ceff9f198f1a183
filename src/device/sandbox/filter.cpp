#include "device/sandbox/filter.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace flashcore::sandbox {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
constexpr bool kHasX32 = true;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
constexpr bool kHasX32 = false;
#else
#error "the sandbox knows the system calls of x86-64 and aarch64"
#endif
constexpr std::uint32_t kX32Bit = 0x40000000;

constexpr std::uint32_t kAllow = SECCOMP_RET_ALLOW, kKill = SECCOMP_RET_KILL_PROCESS;
constexpr std::uint32_t refuse(int error) {
  return SECCOMP_RET_ERRNO | (static_cast<std::uint32_t>(error) & SECCOMP_RET_DATA);
}

class Program {
 public:
  Program() {
    load(offsetof(seccomp_data, arch));
    jump(BPF_JEQ, kArchitecture, 1, 0);
    answer(kKill);
    load(offsetof(seccomp_data, nr));
    if (kHasX32) {
      jump(BPF_JGE, kX32Bit, 0, 1);
      answer(kKill);
    }
  }
  void calls(std::initializer_list<long> numbers, std::uint32_t what) {
    for (const long number : numbers) {
      jump(BPF_JEQ, static_cast<std::uint32_t>(number), 0, 1);
      answer(what);
    }
  }
  // `number` answered by the low half of its argument `index`: `if_set` when a bit of `mask` is in it.
  void by_bits(long number, int index, std::uint32_t mask, std::uint32_t if_set, std::uint32_t if_clear) {
    jump(BPF_JEQ, static_cast<std::uint32_t>(number), 0, 4);
    load(argument(index));
    jump(BPF_JSET, mask, 0, 1);
    answer(if_set);
    answer(if_clear);
  }
  void by_value(long number, int index, std::uint32_t value, std::uint32_t if_equal, std::uint32_t otherwise) {
    jump(BPF_JEQ, static_cast<std::uint32_t>(number), 0, 4);
    load(argument(index));
    jump(BPF_JEQ, value, 0, 1);
    answer(if_equal);
    answer(otherwise);
  }
  void refuse_values(long number, int index, std::initializer_list<std::uint32_t> values, std::uint32_t what) {
    jump(BPF_JEQ, static_cast<std::uint32_t>(number), 0, static_cast<std::uint8_t>(2 + 2 * values.size()));
    load(argument(index));
    for (const std::uint32_t value : values) {
      jump(BPF_JEQ, value, 0, 1);
      answer(what);
    }
    answer(kAllow);
  }
  std::vector<sock_filter> end(std::uint32_t rest) {
    answer(rest);
    return std::move(code_);
  }

 private:
  // Both architectures are little-endian: the low half comes first.
  static std::uint32_t argument(int index) {
    return static_cast<std::uint32_t>(offsetof(seccomp_data, args)) + 8 * static_cast<std::uint32_t>(index);
  }
  void load(std::size_t offset) {
    code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)));
  }
  void jump(int test, std::uint32_t value, std::uint8_t if_true, std::uint8_t if_false) {
    code_.push_back(BPF_JUMP(static_cast<std::uint16_t>(BPF_JMP | test | BPF_K), value, if_true, if_false));
  }
  void answer(std::uint32_t what) { code_.push_back(BPF_STMT(BPF_RET | BPF_K, what)); }

  std::vector<sock_filter> code_;
};

constexpr long kRefusedMountSetattr = 442;

}  // namespace

std::vector<sock_filter> tool_filter(bool by_paths) {
  Program program;
  program.calls({SYS_socket,
                 SYS_socketpair,
                 SYS_ptrace,
                 SYS_process_vm_readv,
                 SYS_process_vm_writev,
                 SYS_pidfd_open,
                 SYS_pidfd_getfd,
                 SYS_pidfd_send_signal,
                 SYS_mount,
                 SYS_umount2,
                 SYS_pivot_root,
                 SYS_chroot,
                 SYS_fsopen,
                 SYS_fsmount,
                 SYS_move_mount,
                 SYS_open_tree,
                 kRefusedMountSetattr,
                 SYS_unshare,
                 SYS_setns,
                 SYS_keyctl,
                 SYS_add_key,
                 SYS_request_key,
                 SYS_bpf,
                 SYS_perf_event_open,
                 SYS_userfaultfd,
                 SYS_io_uring_setup,
                 SYS_io_uring_enter,
                 SYS_io_uring_register,
                 SYS_kexec_load,
                 SYS_init_module,
                 SYS_finit_module,
                 SYS_delete_module,
                 SYS_name_to_handle_at,
                 SYS_open_by_handle_at,
                 SYS_reboot,
                 SYS_swapon,
                 SYS_swapoff,
                 SYS_acct},
                refuse(EPERM));
  program.calls({SYS_clone3}, refuse(ENOSYS));  // its flags cannot be read here; libc then takes clone
  program.by_bits(SYS_clone, 0,
                  static_cast<std::uint32_t>(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC |
                                             CLONE_NEWUTS | CLONE_NEWCGROUP),
                  refuse(EPERM), kAllow);
  // Typing into a terminal, and what else of one acts outside of its process.
  program.refuse_values(SYS_ioctl, 1, {TIOCSTI, TIOCLINUX, TIOCSETD, TIOCSCTTY}, refuse(EPERM));
  if (by_paths) {
    // Signals in another's name.
    program.refuse_values(SYS_fcntl, 1, {F_SETOWN, F_SETOWN_EX, F_SETSIG}, refuse(EPERM));
    for (const long of_process :
         {SYS_prlimit64, SYS_sched_setaffinity, SYS_sched_setscheduler, SYS_sched_setparam, SYS_sched_setattr})
      program.by_value(of_process, 0, 0, kAllow, refuse(EPERM));
    program.calls(
        {SYS_ioprio_set, SYS_migrate_pages, SYS_move_pages,      SYS_process_madvise, SYS_kcmp,         SYS_shmget,
         SYS_shmat,      SYS_shmctl,        SYS_shmdt,           SYS_semget,          SYS_semop,        SYS_semtimedop,
         SYS_semctl,     SYS_msgget,        SYS_msgsnd,          SYS_msgrcv,          SYS_msgctl,       SYS_mq_open,
         SYS_mq_unlink,  SYS_mq_timedsend,  SYS_mq_timedreceive, SYS_mq_notify,       SYS_mq_getsetattr},
        refuse(EPERM));
    program.calls({SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_truncate,
                   SYS_fchown, SYS_fchownat, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr,
                   SYS_lremovexattr, SYS_fremovexattr, SYS_utimensat, SYS_setpriority},
                  refuse(EPERM));
    program.calls({SYS_fchmod, SYS_fchmodat}, refuse(0));  // the linker sets the bits of what it wrote
#if defined(__x86_64__)
    program.calls({SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat}, refuse(EPERM));
    program.calls({SYS_chmod}, refuse(0));
#endif
  }
  return program.end(kAllow);
}

std::vector<sock_filter> executor_filter(int own_pid) {
  Program program;
  program.calls({SYS_read,
                 SYS_write,
                 SYS_readv,
                 SYS_writev,
                 SYS_pread64,
                 SYS_close,
                 SYS_fstat,
                 SYS_newfstatat,
                 SYS_lseek,
                 SYS_mmap,
                 SYS_mprotect,
                 SYS_munmap,
                 SYS_mremap,
                 SYS_madvise,
                 SYS_brk,
                 SYS_rt_sigaction,
                 SYS_rt_sigprocmask,
                 SYS_rt_sigreturn,
                 SYS_sigaltstack,
                 SYS_futex,
                 SYS_sched_yield,
                 SYS_sched_getaffinity,
                 SYS_clock_gettime,
                 SYS_clock_nanosleep,
                 SYS_nanosleep,
                 SYS_gettimeofday,
                 SYS_getpid,
                 SYS_gettid,
                 SYS_exit,
                 SYS_exit_group,
                 SYS_set_robust_list,
                 SYS_rseq,
                 SYS_getrandom,
                 SYS_restart_syscall},
                kAllow);
  // Asked for by the C library here and there, which lives with a no.
  program.calls({SYS_ioctl,
                 SYS_fcntl,
                 SYS_prctl,
                 SYS_readlinkat,
                 SYS_faccessat,
                 SYS_faccessat2,
                 SYS_statx,
                 SYS_statfs,
                 SYS_uname,
                 SYS_sysinfo,
                 SYS_prlimit64,
                 SYS_getrusage,
                 SYS_getuid,
                 SYS_geteuid,
                 SYS_getgid,
                 SYS_getegid,
                 SYS_sched_setaffinity,
                 SYS_get_mempolicy,
                 SYS_set_mempolicy,
                 SYS_mbind,
                 SYS_membarrier,
                 SYS_getcwd,
                 SYS_getcpu,
                 SYS_set_tid_address},
                refuse(EPERM));
#if defined(__x86_64__)
  program.calls({SYS_readlink, SYS_access, SYS_arch_prctl}, refuse(EPERM));
#endif
  program.calls({SYS_clone3}, refuse(ENOSYS));
  program.by_bits(SYS_clone, 0, CLONE_THREAD, kAllow, kKill);
  program.by_bits(SYS_openat, 2, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND, kKill, kAllow);
  program.by_value(SYS_tgkill, 0, static_cast<std::uint32_t>(own_pid), kAllow, kKill);
  return program.end(kKill);
}

}  // namespace flashcore::sandbox
