// The executor of tests: what `flashcore execute-kernel` is.

#include "device/emulator/executor.h"

int main(int argc, char** argv) { return argc == 3 ? flashcore::emulator::executor_main(argv[2]) : 3; }
