//! The address range of the isolated bridge.
//!
//! Pure; nothing here can be half done.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// Used unless configured.
const DEFAULT: &str = "172.30.0.0/22";
/// From one host's worth of computers to the largest private range.
const PREFIXES: std::ops::RangeInclusive<u32> = 8..=29;

/// An IPv4 network; its first address is the host's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Subnet {
    network: Ipv4Addr,
    prefix: u32,
}

impl Default for Subnet {
    fn default() -> Self {
        DEFAULT.parse().expect("the default is a subnet")
    }
}

impl Subnet {
    pub(super) fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.network) + 1)
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("isolated subnet `{text}` is not an IPv4 network such as {DEFAULT}");
        let (network, prefix) = text.split_once('/').ok_or_else(bad)?;
        let network: Ipv4Addr = network.parse().map_err(|_| bad())?;
        let prefix: u32 = prefix.parse().ok().filter(|prefix| PREFIXES.contains(prefix)).ok_or_else(bad)?;
        if u32::from(network) & (u32::MAX >> prefix) != 0 {
            return Err(bad());
        }
        Ok(Self { network, prefix })
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_networks_are_subnets() {
        let subnet: Subnet = "10.9.8.0/24".parse().expect("a subnet");
        assert_eq!((subnet.to_string().as_str(), subnet.gateway()), ("10.9.8.0/24", Ipv4Addr::new(10, 9, 8, 1)));
        for text in ["10.9.8.1/24", "10.9.8.0", "10.9.8.0/33", "10.9.8.0/31", "::/64", "a/24", ""] {
            assert!(text.parse::<Subnet>().is_err(), "{text}");
        }
        assert_eq!(Subnet::default().gateway(), Ipv4Addr::new(172, 30, 0, 1));
    }
}
