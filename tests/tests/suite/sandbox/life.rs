//! Races, lost replies, the byte stream, freezing, ends and removal.

use std::time::Duration;

use bollard::query_parameters::{InspectContainerOptions, KillContainerOptionsBuilder, ListVolumesOptionsBuilder};
use futures_util::future::join_all;
use holdfast_worker::sandbox::docker::Engine;
use holdfast_worker::sandbox::{ComputerState, Sandbox, SandboxError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use uuid::Uuid;

use super::support::World;

#[tokio::test(flavor = "multi_thread")]
async fn racing_workers_land_on_one_computer() {
    let world = World::new().await;
    let spec = world.spec();
    let computers = join_all((0..6).map(|_| world.docker.ensure(&spec))).await;
    let ids: Vec<_> = computers.into_iter().map(|computer| computer.expect("a computer").id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let listed = world.docker.list().await.expect("a list");
    assert_eq!(listed.len(), 1);
    let computer = &listed[0];
    assert_eq!((&computer.name, computer.state), (&spec.name, ComputerState::Running));
    assert_eq!((computer.session, computer.generation), (Some(spec.session), Some(spec.generation)));
    assert_eq!((computer.nonce, computer.spec_digest.clone()), (Some(spec.nonce), Some(spec.sandbox.digest())));
    assert!(computer.age_s < 600, "{}", computer.age_s);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_leaves_a_computer_that_is_found_again() {
    let world = World::new().await;
    for pause in [0, 2, 5, 10, 20, 40, 80, 160, 320] {
        let spec = world.spec();
        // The caller goes away somewhere between the first look and the running computer.
        let _ = tokio::time::timeout(Duration::from_millis(pause), world.docker.ensure(&spec)).await;
        let computer = world.docker.ensure(&spec).await.expect("a computer");
        assert_eq!((computer.state, computer.nonce), (ComputerState::Running, Some(spec.nonce)));
        assert_eq!(world.docker.list().await.expect("a list").len(), 1);
        world.docker.destroy(&spec.name).await.expect("gone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_with_another_nonce_or_spec_is_foreign() {
    let world = World::new().await;
    let spec = world.spec();
    world.docker.ensure(&spec).await.expect("a computer");
    let mut other = spec.clone();
    other.nonce = Uuid::new_v4();
    let error = world.docker.ensure(&other).await.expect_err("another nonce");
    assert!(matches!(&error, SandboxError::Foreign { what, .. } if what.contains("nonce")), "{error}");
    let mut other = spec.clone();
    other.sandbox.memory_mb += 1;
    let error = world.docker.ensure(&other).await.expect_err("another spec");
    assert!(matches!(&error, SandboxError::Foreign { what, .. } if what.contains("spec digest")), "{error}");
    assert_eq!(world.docker.ensure(&spec).await.expect("still there").state, ComputerState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_made_says_what_to_do() {
    let world = World::new().await;
    let mut spec = world.spec();
    spec.sandbox.image = "holdfast-test-none:missing".to_owned();
    let error = world.docker.ensure(&spec).await.expect_err("no image");
    assert!(
        matches!(&error, SandboxError::Unsatisfiable(text) if text.contains("holdfast-test-none:missing") && text.contains("holdfast image build")),
        "{error}"
    );
    let error = Engine::connect_to("unix:///nonexistent/docker.sock").await.expect_err("no engine");
    let text = format!("{:#}", anyhow::Error::new(error));
    assert!(text.contains("unix:///nonexistent/docker.sock") && text.contains("DOCKER_HOST"), "{text}");
    assert!(!text.contains('\n'), "{text}");
    let error = Engine::connect_to("tcp://127.0.0.1:1").await.expect_err("no engine");
    let text = format!("{:#}", anyhow::Error::new(error));
    assert!(text.contains("tcp://127.0.0.1:1") && text.contains("refused"), "{text}");
    let error = Engine::connect_to("ssh://somewhere").await.expect_err("not spoken");
    assert!(error.to_string().contains("not supported"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_carries_bytes_both_ways_and_survives_a_freeze() {
    let world = World::new().await;
    let spec = world.spec();
    world.docker.ensure(&spec).await.expect("a computer");
    let (mut reader, mut writer) = world.docker.open(&spec.name).await.expect("a stream");
    let sent: Vec<u8> = (0..8 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut received = vec![0; sent.len()];
    let (wrote, read) = tokio::join!(writer.write_all(&sent), reader.read_exact(&mut received));
    wrote.and(read.map(drop)).expect("all bytes pass");
    assert!(sent == received, "bytes came back changed");
    world.docker.pause(&spec.name).await.expect("frozen");
    let error = world.docker.open(&spec.name).await.err().expect("a frozen computer opens nothing");
    assert!(matches!(error, SandboxError::Unavailable { .. }), "{error}");
    writer.write_all(b"while frozen").await.expect("buffered");
    world.docker.resume(&spec.name).await.expect("thawed");
    let mut answer = [0; 12];
    reader.read_exact(&mut answer).await.expect("answered after the thaw");
    assert_eq!(&answer, b"while frozen");
    // The end of the computer is the end of the stream, and `wait` says why.
    let (ended, closed) = tokio::join!(world.docker.wait(&spec.name), async {
        let options = KillContainerOptionsBuilder::default().signal("KILL").build();
        world.raw.kill_container(&spec.name, Some(options)).await.expect("killed");
        tokio::time::timeout(Duration::from_secs(30), reader.read(&mut answer)).await.expect("the stream ends")
    });
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    let ended = ended.expect("an end");
    assert_eq!((ended.exit_code, ended.out_of_memory), (Some(137), false), "{ended:?}");
    assert!(matches!(world.docker.open(&spec.name).await.err(), Some(SandboxError::Gone { .. })));
    assert!(matches!(world.docker.resume(&spec.name).await, Err(SandboxError::Gone { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_by_memory_is_told_from_other_ends() {
    let world = World::new().await;
    let spec = world.spec();
    world.docker.ensure(&spec).await.expect("a computer");
    let (ended, _) = tokio::join!(world.docker.wait(&spec.name), world.inside(&spec.name, &["write", "/tmp/eat"]));
    let ended = ended.expect("an end");
    assert_eq!((ended.exit_code, ended.out_of_memory), (Some(137), true), "{ended:?}");
    // It is there until it is destroyed, so that the sweep sees it.
    let found = world.docker.find(&spec.name).await.expect("the engine answers").expect("there");
    assert_eq!((found.state, found.nonce), (ComputerState::Stopped, Some(spec.nonce)));
    assert!(matches!(world.docker.ensure(&spec).await, Err(SandboxError::Gone { .. })), "its files are lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn freezing_thawing_and_removing_may_be_repeated() {
    let world = World::new().await;
    let spec = world.spec();
    world.docker.ensure(&spec).await.expect("a computer");
    assert_eq!(world.inside(&spec.name, &["write", "/workspace/kept"]).await, "ok");
    for _ in 0..2 {
        world.docker.pause(&spec.name).await.expect("frozen");
    }
    let found = world.docker.find(&spec.name).await.expect("the engine answers").expect("there");
    assert_eq!(found.state, ComputerState::Paused);
    for _ in 0..2 {
        world.docker.resume(&spec.name).await.expect("thawed");
    }
    world.docker.pause(&spec.name).await.expect("frozen");
    assert_eq!(world.docker.ensure(&spec).await.expect("thawed by ensure").state, ComputerState::Running);
    assert_eq!(world.inside(&spec.name, &["ls", "/workspace"]).await, "kept");
    let inspected = world.raw.inspect_container(&spec.name, None::<InspectContainerOptions>).await.expect("inspect");
    let volumes: Vec<String> = inspected.mounts.into_iter().flatten().filter_map(|mount| mount.name).collect();
    assert_eq!(volumes.len(), 2);
    world.docker.pause(&spec.name).await.expect("frozen");
    let removals = join_all((0..4).map(|_| world.docker.destroy(&spec.name))).await;
    removals.into_iter().for_each(|removal| removal.expect("gone, whoever did it"));
    assert_eq!(world.docker.find(&spec.name).await.expect("the engine answers"), None);
    assert!(matches!(world.docker.pause(&spec.name).await, Err(SandboxError::Gone { .. })));
    let ended = world.docker.wait(&spec.name).await.expect("an end");
    assert_eq!(ended.exit_code, None);
    let left = world.raw.list_volumes(None::<bollard::query_parameters::ListVolumesOptions>).await.expect("volumes");
    let left: Vec<_> = left.volumes.into_iter().flatten().filter(|volume| volumes.contains(&volume.name)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_that_lost_their_container_are_removed_and_others_are_not() {
    let world = World::new().await;
    let spec = world.spec();
    world.docker.ensure(&spec).await.expect("a computer");
    let stray = format!("stray-{}", world.installation());
    let request = bollard::models::VolumeCreateRequest {
        name: Some(stray),
        labels: Some([("holdfast.managed".to_owned(), world.installation().to_owned())].into()),
        ..Default::default()
    };
    world.raw.create_volume(request).await.expect("a volume");
    assert_eq!(world.docker.remove_stray_volumes().await.expect("removed"), 1);
    let mine = format!("holdfast.managed={}", world.installation());
    let filters = std::collections::HashMap::from([("label", vec![mine.as_str()])]);
    let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
    let left = world.raw.list_volumes(Some(options)).await.expect("volumes").volumes.unwrap_or_default();
    assert_eq!(left.len(), 2, "the computer keeps its volumes");
}
