#pragma once
// The executor: a process that runs others' kernels and nothing else. It confines itself (device/sandbox), loads one
// kernel, launches it on buffers that it was sent, and sends back what it left there. It judges nothing and knows
// nothing worth knowing: neither reference outputs nor files nor the protocol of the laboratory's workers.

namespace flashcore::emulator {

// The whole of the process, for the hidden verb `execute-kernel`. `means`: "namespaces" or "landlock". The exit code.
int executor_main(const char* means);

}  // namespace flashcore::emulator
