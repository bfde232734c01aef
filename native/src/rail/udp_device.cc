#include "udp_device.h"

#include <ifaddrs.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

namespace slackline {
namespace {

constexpr std::size_t kUsual = 65'536;

bool same_host(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

unsigned interface_of(int fd) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  ifaddrs* all = nullptr;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0 || ::getifaddrs(&all) != 0)
    return 0;
  unsigned index = 0;
  for (const ifaddrs* each = all; each != nullptr && index == 0; each = each->ifa_next) {
    if (same_host(each->ifa_addr, reinterpret_cast<const sockaddr*>(&own)))
      index = ::if_nametoindex(each->ifa_name);
  }
  ::freeifaddrs(all);
  return index;
}

std::optional<std::uint32_t> find(const nlmsghdr* message, unsigned short attribute) {
  if (message->nlmsg_type != RTM_NEWLINK) return std::nullopt;
  const auto* link = static_cast<const ifinfomsg*>(NLMSG_DATA(message));
  const auto* each = IFLA_RTA(link);
  auto left = static_cast<int>(IFLA_PAYLOAD(message));
  for (; RTA_OK(each, left); each = RTA_NEXT(each, left)) {
    if (each->rta_type != attribute || RTA_PAYLOAD(each) < sizeof(std::uint32_t)) continue;
    std::uint32_t value = 0;
    std::memcpy(&value, RTA_DATA(each), sizeof value);
    return value;
  }
  return std::nullopt;
}

}  // namespace

std::size_t largest_uncut_packet(int fd) {
  const unsigned index = interface_of(fd);
  if (index == 0) return kUsual;
  const int netlink = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (netlink < 0) return kUsual;
  struct {
    nlmsghdr header;
    ifinfomsg link;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = RTM_GETLINK;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.link.ifi_family = AF_UNSPEC;
  request.link.ifi_index = static_cast<int>(index);
  alignas(nlmsghdr) std::array<char, 16 << 10> reply;
  std::optional<std::uint32_t> found;
  if (::send(netlink, &request, sizeof request, 0) == sizeof request) {
    const ssize_t got = ::recv(netlink, reply.data(), reply.size(), 0);
    const auto* message = reinterpret_cast<const nlmsghdr*>(reply.data());
    if (got > 0 && NLMSG_OK(message, static_cast<std::uint32_t>(got)))
      found = find(message, IFLA_GSO_MAX_SIZE);
  }
  ::close(netlink);
  return found.value_or(kUsual);
}

}  // namespace slackline
