# slackline_core: the engine, the rails and the kernels; knows neither Python nor torch.
file(GLOB_RECURSE core_sources CONFIGURE_DEPENDS native/src/*.cc)
set(kernel_source ${PROJECT_SOURCE_DIR}/native/src/kernels/kernels_isa.cc)
list(REMOVE_ITEM core_sources ${kernel_source})

string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" processor)
set(isas baseline)
if(processor MATCHES "x86_64|amd64")
  list(APPEND isas avx2 avx512)
  set_property(
    SOURCE ${PROJECT_SOURCE_DIR}/native/src/kernels/crc32c_x86.cc
    APPEND PROPERTY COMPILE_OPTIONS -msse4.2 -mpclmul)
endif()
set(flags_avx2 -mavx2 -mfma -mf16c)
set(flags_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c)

add_library(slackline_core STATIC ${core_sources})
target_link_libraries(slackline_core PUBLIC slackline_options Threads::Threads)
target_compile_options(slackline_core PRIVATE ${slackline_sanitized})
if(sanitizers)
  # Eight sources are compiled as one, in two fifths of the time. The plain build compiles each alone, so that a missing
  # #include is found. The tests' own sources stay alone: a constant of one would hide that of a header from the next.
  set_target_properties(slackline_core PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
endif()
if(NOT APPLE)
  target_link_libraries(slackline_core PUBLIC rt)
endif()

# The standard headers that most sources include. A build that parses them once is a third shorter.
set(slackline_headers
  <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <cstring> <deque> <functional> <limits> <map>
  <memory> <mutex> <optional> <random> <set> <span> <stdexcept> <string> <thread> <unordered_map> <utility> <vector>)
target_precompile_headers(slackline_core PRIVATE ${slackline_headers})
# A file with compile options of its own cannot use the precompiled headers.
if(processor MATCHES "x86_64|amd64")
  set_source_files_properties(
    ${PROJECT_SOURCE_DIR}/native/src/kernels/crc32c_x86.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endif()

# One source, compiled once for each instruction set. Contraction into fused multiply-add is off everywhere:
# results are bit-identical with every instruction set.
foreach(isa IN LISTS isas)
  add_library(slackline_kernels_${isa} OBJECT ${kernel_source})
  target_link_libraries(slackline_kernels_${isa} PRIVATE slackline_options)
  target_compile_definitions(slackline_kernels_${isa} PRIVATE SLACKLINE_ISA=${isa})
  target_compile_options(slackline_kernels_${isa} PRIVATE ${flags_${isa}} ${slackline_sanitized})
  target_sources(slackline_core PRIVATE $<TARGET_OBJECTS:slackline_kernels_${isa}>)
endforeach()
