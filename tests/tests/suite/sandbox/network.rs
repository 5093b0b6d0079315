//! Networks: none, the host's isolated bridge, and named ones.
//!
//! The bridge is one per host and may be in use by others, so one test walks through its whole life in order.

use std::net::Ipv4Addr;

use bollard::models::NetworkCreateRequest;
use bollard::query_parameters::InspectNetworkOptions;
use futures_util::future::join_all;
use holdfast_shared::domain::sandbox::Network;
use holdfast_worker::sandbox::docker::{Docker, ISOLATED};
use holdfast_worker::sandbox::{Sandbox, SandboxError};

use super::support::World;

#[tokio::test(flavor = "multi_thread")]
async fn without_a_network_there_is_loopback_alone() {
    let world = World::new().await;
    let spec = world.spec();
    world.docker.ensure(&spec).await.expect("a computer");
    assert_eq!(world.inside(&spec.name, &["ls", "/sys/class/net"]).await, "lo");
    let said = world.inside(&spec.name, &["dial", "192.0.2.1:80"]).await;
    assert!(said.starts_with("errno 101"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn computers_on_the_isolated_bridge_reach_the_host_and_not_each_other() {
    let world = World::new().await;
    let gateways = join_all((0..6).map(|_| world.docker.gateway())).await;
    let gateways: Vec<Ipv4Addr> = gateways.into_iter().map(|gateway| gateway.expect("a bridge")).collect();
    assert!(gateways.iter().all(|gateway| *gateway == Ipv4Addr::new(172, 30, 0, 1)), "{gateways:?}");

    let mut specs = [world.spec(), world.spec()];
    for spec in &mut specs {
        spec.sandbox.network = Network::Isolated;
        world.docker.ensure(spec).await.expect("a computer");
    }
    let [first, second] = &specs;
    let address = address_of(&world, &first.name).await;
    // The listener works: its own computer reaches it by the address that its neighbour tries.
    let (mut listening, _input) = open_listener(&world, &first.name).await;
    listening.wait_for("listening").await;
    assert_eq!(world.inside(&first.name, &["dial", &format!("{address}:7000")]).await, "ok");
    let said = world.inside(&second.name, &["dial", &format!("{address}:7000")]).await;
    assert!(said.contains("TimedOut") || said.contains("Unreachable"), "{said}");

    let host = tokio::net::TcpListener::bind((gateways[0], 0)).await.expect("the host's side of the bridge");
    let port = host.local_addr().expect("an address").port();
    assert_eq!(world.inside(&second.name, &["dial", &format!("{}:{port}", gateways[0])]).await, "ok");

    let other = Docker::connect(world.installation(), Some("172.31.252.0/24")).await.expect("the engine");
    let error = other.gateway().await.expect_err("another subnet").to_string();
    assert!(error.contains("172.31.252.0/24") && error.contains("172.30.0.0/22"), "{error}");

    assert!(!world.docker.remove_isolated_network().await.expect("an answer"), "two computers use it");
    for spec in &specs {
        world.docker.destroy(&spec.name).await.expect("gone");
    }
    if world.docker.remove_isolated_network().await.expect("an answer") {
        assert!(world.docker.remove_isolated_network().await.expect("an answer"), "removing what is gone is fine");
    } else {
        let left = world.raw.inspect_network(ISOLATED, None::<InspectNetworkOptions>).await.expect("in use by others");
        assert!(left.labels.unwrap_or_default().contains_key("holdfast.managed"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_network_must_exist_and_be_nobody_elses_namespace() {
    let world = World::new().await;
    for (name, why) in
        [("holdfast-test-absent", "does not exist"), ("none", "cannot be used"), ("bridge", "cannot be used")]
    {
        let mut spec = world.spec();
        spec.sandbox.network = Network::Named(name.to_owned());
        let error = world.docker.ensure(&spec).await.expect_err(name);
        assert!(matches!(&error, SandboxError::Unsatisfiable(text) if text.contains(why)), "{error}");
    }
    let name = format!("net-{}", world.installation());
    let request = NetworkCreateRequest { name: name.clone(), ..NetworkCreateRequest::default() };
    world.raw.create_network(request).await.expect("a network");
    let mut spec = world.spec();
    spec.sandbox.network = Network::Named(name.clone());
    let made = world.docker.ensure(&spec).await;
    let seen = world.inside(&spec.name, &["ls", "/sys/class/net"]).await;
    world.docker.destroy(&spec.name).await.expect("gone");
    world.raw.remove_network(&name).await.expect("removable");
    made.expect("a computer");
    assert_eq!(seen, "eth0 lo");
}

async fn address_of(world: &World, name: &str) -> String {
    let found = world.raw.inspect_network(ISOLATED, None::<InspectNetworkOptions>).await.expect("inspect");
    let attached = found.containers.unwrap_or_default();
    let address = attached.into_values().find(|end| end.name.as_deref() == Some(name)).and_then(|end| end.ipv4_address);
    address.expect("an address").split('/').next().expect("an address").to_owned()
}

/// What a program inside says, as it says it.
struct Saying(
    std::pin::Pin<
        Box<dyn futures_util::Stream<Item = Result<bollard::container::LogOutput, bollard::errors::Error>> + Send>,
    >,
);

impl Saying {
    async fn wait_for(&mut self, text: &str) {
        use futures_util::StreamExt;
        let mut said = String::new();
        while !said.contains(text) {
            let more = tokio::time::timeout(std::time::Duration::from_secs(30), self.0.next()).await.expect("in time");
            said.push_str(&more.expect("it goes on").expect("readable").to_string());
        }
    }
}

async fn open_listener(world: &World, name: &str) -> (Saying, std::pin::Pin<Box<dyn tokio::io::AsyncWrite + Send>>) {
    use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
    let exec = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        cmd: Some(vec![holdfast_protocol::RUNTIME_PATH, "listen", "0.0.0.0:7000"]),
        ..CreateExecOptions::default()
    };
    let exec = world.raw.create_exec(name, exec).await.expect("an exec");
    match world.raw.start_exec(&exec.id, None::<StartExecOptions>).await.expect("a start") {
        StartExecResults::Attached { output, input } => (Saying(output), input),
        StartExecResults::Detached => panic!("detached"),
    }
}
