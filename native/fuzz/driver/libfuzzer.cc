// With `--write-seeds FOLDER` a fuzzer writes its seeds to the folder and exits. libFuzzer provides
// everything else.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "../target.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::strcmp((*argv)[1], "--write-seeds") != 0) return 0;
  int number = 0;
  for (const slackline::fuzz::Bytes& seed : slackline::fuzz::seeds()) {
    std::ofstream file(std::string((*argv)[2]) + "/seed-" + std::to_string(number++),
                       std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
    if (!file) std::exit(1);
  }
  std::exit(0);
}
