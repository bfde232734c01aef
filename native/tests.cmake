# slackline_native_tests: every native/tests/*.cc in one executable.
file(GLOB test_sources CONFIGURE_DEPENDS native/tests/*.cc)
add_executable(slackline_native_tests ${test_sources})
target_include_directories(slackline_native_tests PRIVATE native/src)
target_link_libraries(slackline_native_tests PRIVATE slackline_core)
enable_testing()
add_test(NAME native COMMAND slackline_native_tests)
set_tests_properties(native PROPERTIES TIMEOUT 300)
