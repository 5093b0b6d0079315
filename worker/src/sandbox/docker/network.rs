//! Networks of computers. `holdfast-isolated` is one bridge per host, made on demand and shared by every installation on
//! that host: no traffic between its containers, the way out and to the host open.
//!
//! The bridge has a fixed subnet, so of two racing creates the engine refuses one (the pools overlap). Dying after the
//! create leaves an unused bridge that the next computer uses or `remove_isolated_network` takes away.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use bollard::models::{Ipam, IpamConfig, NetworkCreateRequest, NetworkInspect};
use bollard::query_parameters::{InspectNetworkOptions, ListContainersOptionsBuilder, ListNetworksOptionsBuilder};
use holdfast_shared::domain::sandbox::{Network, label};
use tokio::time::Instant;

use super::Docker;
use super::engine::{Fault, QUICK, SLOW, call};
use crate::sandbox::SandboxError;

/// Name of the host's own bridge.
pub const ISOLATED: &str = "holdfast-isolated";
/// Name of the bridge's interface on the host, for firewall rules.
pub const ISOLATED_INTERFACE: &str = "hf-isolated";

const NETWORK: &str = "network";
/// A racing create holds the subnet a moment before its network is listed.
const POOL_SETTLES: Duration = Duration::from_secs(3);
const POOL_STEP: Duration = Duration::from_millis(50);
const ICC: &str = "com.docker.network.bridge.enable_icc";
const INTERFACE: &str = "com.docker.network.bridge.name";

impl Docker {
    /// Address of the host on the isolated bridge; makes the bridge when it is not there.
    pub async fn gateway(&self) -> Result<Ipv4Addr, SandboxError> {
        self.isolated_ready().await?;
        Ok(self.subnet.gateway())
    }

    /// Whether the bridge is there; an error says why it cannot be used. Makes nothing.
    pub async fn check_isolated(&self) -> Result<bool, SandboxError> {
        match self.isolated().await? {
            Some(found) => self.checked(&found).map(|()| true),
            None => Ok(false),
        }
    }

    /// Removes the bridge if it is ours and no container is attached, running or not. True when it is gone now.
    pub async fn remove_isolated_network(&self) -> Result<bool, SandboxError> {
        let Some(found) = self.isolated().await? else { return Ok(true) };
        let managed = found.labels.as_ref().is_some_and(|labels| labels.contains_key(label::MANAGED));
        if !managed || found.containers.as_ref().is_some_and(|attached| !attached.is_empty()) {
            return Ok(false);
        }
        let filters = HashMap::from([("network", vec![ISOLATED])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let users = call(QUICK, self.engine.client.list_containers(Some(options)));
        if !users.await.map_err(|fault| fault.during(NETWORK))?.is_empty() {
            return Ok(false);
        }
        match call(SLOW, self.engine.client.remove_network(found.id.as_deref().unwrap_or(ISOLATED))).await {
            Ok(()) => Ok(true),
            Err(fault) if fault.code() == Some(404) => Ok(true),
            // Somebody was quicker and uses it.
            Err(fault) if fault.code() == Some(403) => Ok(false),
            Err(fault) => Err(fault.during(NETWORK)),
        }
    }

    /// Makes sure that the network of a computer can be used.
    pub(super) async fn network_ready(&self, network: &Network) -> Result<(), SandboxError> {
        match network {
            Network::None => Ok(()),
            Network::Isolated => self.isolated_ready().await,
            Network::Named(name) => self.named_ready(name).await,
        }
    }

    async fn isolated_ready(&self) -> Result<(), SandboxError> {
        let until = Instant::now() + POOL_SETTLES;
        loop {
            if let Some(found) = self.isolated().await? {
                return self.checked(&found);
            }
            let Err(fault) = self.create_isolated().await else { return Ok(()) };
            match fault.code() {
                Some(400..=499) if Instant::now() < until => tokio::time::sleep(POOL_STEP).await,
                Some(400..=499) => {
                    return Err(SandboxError::Unsatisfiable(format!(
                        "network {ISOLATED} cannot be made with subnet {} ({}): free the subnet, or configure another",
                        self.subnet,
                        fault.text()
                    )));
                }
                _ => return Err(fault.during(NETWORK)),
            }
        }
    }

    async fn isolated(&self) -> Result<Option<NetworkInspect>, SandboxError> {
        let filters = HashMap::from([("name", vec![ISOLATED])]);
        let options = ListNetworksOptionsBuilder::default().filters(&filters).build();
        let listed = call(QUICK, self.engine.client.list_networks(Some(options)));
        let listed = listed.await.map_err(|fault| fault.during(NETWORK))?;
        let same: Vec<_> = listed.into_iter().filter(|network| network.name.as_deref() == Some(ISOLATED)).collect();
        if same.len() > 1 {
            return Err(SandboxError::Unsatisfiable(format!(
                "there are {} networks of the name {ISOLATED}: remove them with `docker network rm` by id",
                same.len()
            )));
        }
        let Some(id) = same.into_iter().next().and_then(|network| network.id) else { return Ok(None) };
        match call(QUICK, self.engine.client.inspect_network(&id, None::<InspectNetworkOptions>)).await {
            Ok(found) => Ok(Some(found)),
            Err(fault) if fault.code() == Some(404) => Ok(None),
            Err(fault) => Err(fault.during(NETWORK)),
        }
    }

    async fn create_isolated(&self) -> Result<(), Fault> {
        let request = NetworkCreateRequest {
            name: ISOLATED.to_owned(),
            driver: Some("bridge".to_owned()),
            enable_ipv6: Some(false),
            ipam: Some(Ipam {
                config: Some(vec![IpamConfig {
                    subnet: Some(self.subnet.to_string()),
                    gateway: Some(self.subnet.gateway().to_string()),
                    ..IpamConfig::default()
                }]),
                ..Ipam::default()
            }),
            options: Some(HashMap::from(
                [(ICC, "false"), (INTERFACE, ISOLATED_INTERFACE)]
                    .map(|(key, value)| (key.to_owned(), value.to_owned())),
            )),
            labels: Some(HashMap::from([(label::MANAGED.to_owned(), self.installation.clone())])),
            ..NetworkCreateRequest::default()
        };
        // Engines before API 1.44 make a second network of the same name unless told not to; later ones never do, and
        // the client's model has lost the field.
        let mut body = serde_json::to_value(&request).expect("a request always encodes");
        body["CheckDuplicate"] = true.into();
        let body = bytes::Bytes::from(body.to_string());
        let client = self.engine.client.clone();
        let client = client.with_request_modifier(move |asked| asked.map(|_| bollard::body_full(body.clone())));
        call(SLOW, client.create_network(request)).await.map(drop)
    }

    fn checked(&self, found: &NetworkInspect) -> Result<(), SandboxError> {
        let option = |key: &str| found.options.as_ref().and_then(|options| options.get(key)).map(String::as_str);
        let pools: Vec<&IpamConfig> = found.ipam.iter().flat_map(|ipam| ipam.config.iter().flatten()).collect();
        let subnets: Vec<&str> = pools.iter().filter_map(|pool| pool.subnet.as_deref()).collect();
        let gateways: Vec<&str> = pools.iter().filter_map(|pool| pool.gateway.as_deref()).collect();
        let wrong = if !found.labels.as_ref().is_some_and(|labels| labels.contains_key(label::MANAGED)) {
            format!("was not made by holdfast (it has no label {})", label::MANAGED)
        } else if found.driver.as_deref() != Some("bridge") {
            format!("has the driver {}", found.driver.as_deref().unwrap_or("unknown"))
        } else if subnets != [self.subnet.to_string()] {
            format!("has the subnet {} and {} is configured", subnets.join(" "), self.subnet)
        } else if gateways != [self.subnet.gateway().to_string()] {
            format!("has the gateway {} instead of {}", gateways.join(" "), self.subnet.gateway())
        } else if option(ICC) != Some("false") {
            "lets its containers talk to each other".to_owned()
        } else {
            return Ok(());
        };
        Err(SandboxError::Unsatisfiable(format!(
            "network {ISOLATED} {wrong}: remove it with `docker network rm {ISOLATED}`"
        )))
    }

    async fn named_ready(&self, name: &str) -> Result<(), SandboxError> {
        let found = match call(QUICK, self.engine.client.inspect_network(name, None::<InspectNetworkOptions>)).await {
            Ok(found) => found,
            Err(fault) if fault.code() == Some(404) => {
                return Err(SandboxError::Unsatisfiable(format!(
                    "network {name} does not exist: make it with `docker network create {name}`, or use `isolated`"
                )));
            }
            Err(fault) => return Err(fault.during(NETWORK)),
        };
        let shared = ["host", "null"].contains(&found.driver.as_deref().unwrap_or_default());
        let default =
            found.options.iter().flatten().any(|(key, value)| key.ends_with("default_bridge") && value == "true");
        // An id or a prefix of one would find a network too; the spec names it.
        if shared || default || found.name.as_deref() != Some(name) {
            return Err(SandboxError::Unsatisfiable(format!(
                "network {name} cannot be used by a computer: use `none`, `isolated` or a bridge of your own"
            )));
        }
        Ok(())
    }
}
