// Ends this process with another one, by a thread that needs no interpreter.
#include <cerrno>

#include "kernels/exported.h"

#ifdef __linux__
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

namespace tightbeam {
namespace {

#ifndef SYS_pidfd_open
constexpr long SYS_pidfd_open = 434;  // the same number on all architectures but Alpha; Linux 5.3
#endif

// `descriptor` is a pidfd, or -1 for a process that has ended.
void end_with(int descriptor, std::chrono::duration<double> grace, const std::string& file,
              const std::string& message) {
  pollfd ended{descriptor, POLLIN, 0};
  while (descriptor >= 0 && poll(&ended, 1, -1) < 0 && errno == EINTR) {}
  std::this_thread::sleep_for(grace);
  unlink(file.c_str());
  if (write(STDERR_FILENO, message.data(), message.size()) < 0) {
    // Nobody reads it.
  }
  kill(getpid(), SIGKILL);
}

}  // namespace
}  // namespace tightbeam

// Starts a thread that waits for the end of `process`. If this process has not ended `seconds` later, the thread
// removes `file`, writes `message` to standard error and kills this process. Returns 0, or the errno of what the system
// refuses.
TIGHTBEAM_EXPORT int tightbeam_end_with(int process, double seconds, const char* file, const char* message) {
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, process, 0));  // closed on exec
  if (descriptor < 0 && errno != ESRCH) return errno;
  sigset_t all, before;
  sigfillset(&all);
  // Handlers run in the threads that they ran in. On Linux this is pthread_sigmask, which would need glibc 2.32.
  sigprocmask(SIG_SETMASK, &all, &before);
  int fault = 0;
  try {
    std::thread(tightbeam::end_with, descriptor, std::chrono::duration<double>(seconds), std::string(file),
                std::string(message))
        .detach();
  } catch (...) {  // no thread, or no memory for one
    if (descriptor >= 0) close(descriptor);
    fault = EAGAIN;
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return fault;
}
#else
TIGHTBEAM_EXPORT int tightbeam_end_with(int, double, const char*, const char*) { return ENOSYS; }
#endif
