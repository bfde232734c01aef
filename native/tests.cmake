# slackline_native_tests: every native/tests/*_test.cc in one executable; each bench_*.cc is an executable of its own.
file(GLOB test_sources CONFIGURE_DEPENDS native/tests/*_test.cc)
if(SLACKLINE_SANITIZE STREQUAL "thread")
  # Tests on a single thread have no races, and are slow under this sanitizer.
  # A process that is forked under it may not start threads (engine_exit).
  set(alone aborted_operations aggregation arena blocks crc32c engine_exit engine_late_frames engine_memory figures kernels
    lab_fabric link_acknowledge link_model membership operations rail_injector rail_stream rail_stream_limits rail_udp
    rail_udp_congestion rail_udp_network rail_udp_protocol rail_udp_sharing request_chain sim_machine stream_silence
    unexpected_frames wire wire_contract)
  foreach(name IN LISTS alone)
    list(REMOVE_ITEM test_sources ${PROJECT_SOURCE_DIR}/native/tests/${name}_test.cc)
  endforeach()
elseif(SLACKLINE_SANITIZE STREQUAL "address")
  # Minutes of simulated traffic each, which take too long here; other tests run the same code.
  list(FILTER test_sources EXCLUDE REGEX "/rail_udp_sharing_test\\.cc$")
endif()
set(model_sources native/tests/model/search.cc native/tests/model/world.cc native/tests/model/world_state.cc)
# These play minutes of simulated traffic, or search many states: they are optimised. The others' own code would take
# longer to optimise than to run.
set(long_sources ${test_sources})
list(FILTER long_sources INCLUDE REGEX "/(link_model|rail_udp_.*)_test\\.cc$")
list(REMOVE_ITEM test_sources ${long_sources})
add_library(slackline_long_tests OBJECT EXCLUDE_FROM_ALL ${long_sources} ${model_sources})
target_link_libraries(slackline_long_tests PRIVATE slackline_core)
target_compile_options(slackline_long_tests PRIVATE ${slackline_sanitized})
add_executable(slackline_native_tests EXCLUDE_FROM_ALL native/tests/main.cc ${test_sources})
target_link_libraries(slackline_native_tests PRIVATE slackline_long_tests slackline_core)
target_compile_options(slackline_native_tests PRIVATE -O0)
target_precompile_headers(slackline_native_tests PRIVATE ${slackline_headers} "${PROJECT_SOURCE_DIR}/native/tests/ranks.h")
enable_testing()
add_test(NAME native COMMAND slackline_native_tests)
set_tests_properties(native PROPERTIES TIMEOUT 300)

file(GLOB bench_sources CONFIGURE_DEPENDS native/tests/bench_*.cc)
foreach(source IN LISTS bench_sources)
  cmake_path(GET source STEM name)
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${name} PRIVATE slackline_core)
endforeach()

# slackline_link_model: the model checker of a link, for larger explorations than the tests'.
add_executable(slackline_link_model EXCLUDE_FROM_ALL native/tests/model/main.cc ${model_sources})
target_link_libraries(slackline_link_model PRIVATE slackline_core)

# slackline_allocation_tests: an executable of its own, whose `operator new` fails at chosen allocations.
file(GLOB allocation_sources CONFIGURE_DEPENDS native/tests/allocation/*.cc)
add_executable(slackline_allocation_tests EXCLUDE_FROM_ALL native/tests/main.cc ${allocation_sources})
target_link_libraries(slackline_allocation_tests PRIVATE slackline_core)
add_dependencies(slackline_native_tests slackline_allocation_tests)
add_test(NAME allocations COMMAND slackline_allocation_tests)
set_tests_properties(allocations PROPERTIES TIMEOUT 300)
target_compile_options(slackline_allocation_tests PRIVATE -O0)
target_precompile_headers(slackline_allocation_tests PRIVATE ${slackline_headers} "${PROJECT_SOURCE_DIR}/native/src/engine/engine.h")

# slackline_simulation: whole engines in simulated time. The linker leads the engine's system calls to the simulated
# system (tests/simulation/system_calls.cc, thread_calls.cc); the engine itself is the one of every other program.
file(GLOB simulation_sources CONFIGURE_DEPENDS native/tests/simulation/*.cc)
add_executable(slackline_simulation EXCLUDE_FROM_ALL ${simulation_sources})
target_link_libraries(slackline_simulation PRIVATE slackline_core)
target_precompile_headers(slackline_simulation PRIVATE ${slackline_headers} "${PROJECT_SOURCE_DIR}/native/src/engine/engine.h")
set(simulated_calls
  clock_gettime close epoll_create1 epoll_ctl epoll_wait eventfd fcntl getifaddrs getpeername getsockname getsockopt ioctl
  pthread_cond_clockwait pthread_cond_wait pthread_mutex_lock pthread_mutex_unlock read readlink readv recv recvmmsg sched_yield sendmmsg sendmsg setsockopt shutdown syscall write
  _ZNSt6chrono3_V212steady_clock3nowEv                            # std::chrono::steady_clock::now()
  _ZNSt18condition_variable10notify_oneEv _ZNSt18condition_variable10notify_allEv
  _ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE _ZNSt6thread4joinEv)
list(TRANSFORM simulated_calls PREPEND "-Wl,--wrap=")
target_link_options(slackline_simulation PRIVATE ${simulated_calls})
