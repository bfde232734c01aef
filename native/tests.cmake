# slackline_native_tests: every native/tests/*_test.cc in one executable; each bench_*.cc is an executable of its own.
file(GLOB test_sources CONFIGURE_DEPENDS native/tests/*_test.cc)
if(SLACKLINE_SANITIZE STREQUAL "thread")
  # Tests on a single thread have no races, and are slow under this sanitizer.
  # A process that is forked under it may not start threads (engine_exit).
  list(FILTER test_sources EXCLUDE REGEX "/(arena|crc32c|engine_exit|kernels|wire|lab_fabric|link_model|rail_udp_(congestion|network|protocol|sharing))_test\\.cc$")
elseif(SLACKLINE_SANITIZE STREQUAL "address")
  # Minutes of simulated traffic each, which take too long here; other tests run the same code.
  list(FILTER test_sources EXCLUDE REGEX "/rail_udp_sharing_test\\.cc$")
endif()
set(model_sources native/tests/model/search.cc native/tests/model/world.cc native/tests/model/world_state.cc)
add_executable(slackline_native_tests EXCLUDE_FROM_ALL native/tests/main.cc ${test_sources} ${model_sources})
target_link_libraries(slackline_native_tests PRIVATE slackline_core)
target_precompile_headers(slackline_native_tests PRIVATE ${slackline_headers} "${PROJECT_SOURCE_DIR}/native/src/engine/engine.h")
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
target_precompile_headers(slackline_allocation_tests PRIVATE ${slackline_headers} "${PROJECT_SOURCE_DIR}/native/src/engine/engine.h")

# slackline_simulation: whole engines in simulated time. The linker leads the engine's system calls to the simulated
# system (tests/simulation/system_calls.cc); the engine itself is the one of every other program.
file(GLOB simulation_sources CONFIGURE_DEPENDS native/tests/simulation/*.cc)
add_executable(slackline_simulation EXCLUDE_FROM_ALL ${simulation_sources})
target_link_libraries(slackline_simulation PRIVATE slackline_core)
target_precompile_headers(slackline_simulation PRIVATE ${slackline_headers} "${PROJECT_SOURCE_DIR}/native/src/engine/engine.h")
set(simulated_calls
  clock_gettime close epoll_create1 epoll_ctl epoll_wait eventfd fcntl getifaddrs getpeername getsockname getsockopt ioctl
  pthread_cond_clockwait pthread_cond_wait read readlink readv recv recvmmsg sched_yield sendmmsg sendmsg setsockopt shutdown syscall write
  _ZNSt6chrono3_V212steady_clock3nowEv                            # std::chrono::steady_clock::now()
  _ZNSt18condition_variable10notify_oneEv _ZNSt18condition_variable10notify_allEv
  _ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE _ZNSt6thread4joinEv)
list(TRANSFORM simulated_calls PREPEND "-Wl,--wrap=")
target_link_options(slackline_simulation PRIVATE ${simulated_calls})
