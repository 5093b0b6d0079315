//! The lockdown, read back twice: from what the engine recorded and from what a process inside can do.

use std::collections::HashMap;

use bollard::models::HostConfig;
use bollard::query_parameters::InspectContainerOptions;
use holdfast_worker::sandbox::{Sandbox, SandboxError};

use super::support::World;

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_recorded_what_was_asked() {
    let world = World::new().await;
    let spec = world.spec();
    world.docker.ensure(&spec).await.expect("a computer");
    let found = world.raw.inspect_container(&spec.name, None::<InspectContainerOptions>).await.expect("inspect");
    let config = found.config.expect("config");
    assert_eq!(config.user.as_deref(), Some("64017:64017"));
    assert_eq!(config.hostname.as_deref(), Some("holdfast"));
    let env = config.env.unwrap_or_default();
    assert!(env.iter().all(|pair| ["HOME=", "PATH=", "LANG="].iter().any(|known| pair.starts_with(known))), "{env:?}");
    let HostConfig {
        readonly_rootfs,
        cap_drop,
        cap_add,
        privileged,
        security_opt,
        memory,
        memory_swap,
        nano_cpus,
        pids_limit,
        network_mode,
        ipc_mode,
        pid_mode,
        shm_size,
        binds,
        devices,
        init,
        log_config,
        restart_policy,
        sysctls,
        ..
    } = found.host_config.expect("host config");
    assert_eq!((readonly_rootfs, privileged, init), (Some(true), Some(false), Some(false)));
    assert_eq!((cap_drop, cap_add.unwrap_or_default()), (Some(vec!["ALL".to_owned()]), Vec::new()));
    let security = security_opt.expect("security options");
    assert!(security.iter().any(|option| option == "no-new-privileges"));
    assert!(security.iter().any(|option| option.starts_with("seccomp={") && !option.contains("io_uring")));
    assert_eq!((memory, memory_swap), (Some(192 << 20), Some(192 << 20)));
    assert_eq!((nano_cpus, pids_limit), (Some(500_000_000), Some(32)));
    assert_eq!((network_mode.as_deref(), ipc_mode.as_deref()), (Some("none"), Some("private")));
    assert_eq!((pid_mode.unwrap_or_default().as_str(), shm_size), ("", Some(16 << 20)));
    assert_eq!((binds.unwrap_or_default().len(), devices.unwrap_or_default().len()), (0, 0));
    assert_eq!(log_config.and_then(|log| log.typ).as_deref(), Some("none"));
    assert_eq!(restart_policy.and_then(|policy| policy.name).map(|name| name.to_string()).as_deref(), Some("no"));
    assert_eq!(sysctls.unwrap_or_default().get("kernel.shm_rmid_forced").map(String::as_str), Some("1"));
    let mut targets: Vec<_> = found.mounts.iter().flatten().filter_map(|mount| mount.destination.clone()).collect();
    targets.sort();
    assert_eq!(targets, ["/runtime", "/workspace"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_inside_has_no_privilege_whoever_it_is() {
    let world = World::new().await;
    let spec = world.spec();
    world.docker.ensure(&spec).await.expect("a computer");
    for user in ["64017:64017", "0:0"] {
        let status = world.inside_as(&spec.name, user, &["cat", "/proc/self/status"]).await;
        let of = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key}: {status}"));
            line.split_whitespace().nth(1).expect("a value").to_owned()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(of(set), "0000000000000000", "{set} of {user}");
        }
        assert_eq!((of("NoNewPrivs:").as_str(), of("Seccomp:").as_str()), ("1", "2"), "{user}");
        let tried = world.inside_as(&spec.name, user, &["syscalls"]).await;
        assert!(tried.lines().count() > 30 || !cfg!(target_arch = "x86_64"), "{tried}");
        for line in tried.lines() {
            let (name, errno) = line.split_once(' ').expect("a name and a number");
            let expected = match name {
                "clone3" => "38",
                _ if name.starts_with("ok_") => "0",
                // Allowed among the agent's own processes; the probe's PID 1 is dumpable, root without capabilities is not its owner.
                "ptrace_pid_1" => continue,
                _ => "1",
            };
            assert_eq!(errno, expected, "{name} as {user}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_volumes_and_tmp_can_be_written_and_each_is_bounded() {
    let world = World::new().await;
    let spec = world.spec();
    world.docker.ensure(&spec).await.expect("a computer");
    let name = &spec.name;
    for path in ["/workspace/f", "/runtime/f", "/tmp/f", "/dev/shm/f"] {
        assert_eq!(world.inside(name, &["write", path]).await, "ok", "{path}");
    }
    for path in ["/f", "/usr/f", "/etc/f", "/dev/f", "/proc/sys/kernel/hostname", "/sys/f"] {
        let said = world.inside(name, &["write", path]).await;
        assert!(["errno 30", "errno 13"].iter().any(|refused| said.starts_with(refused)), "{path}: {said}");
    }
    // The bridge's user owns /dev, a small tmpfs; the root directory is read-only for it too.
    assert!(world.inside_as(name, "0:0", &["write", "/etc/f"]).await.starts_with("errno 30"));
    let table = world.inside(name, &["cat", "/proc/self/mountinfo"]).await;
    let mounts: HashMap<&str, &str> =
        table.lines().filter_map(|line| Some((line.split(' ').nth(4)?, line.split_once(" - ")?.1))).collect();
    for (path, kb) in [("/workspace", 24 << 10), ("/runtime", 16 << 10), ("/tmp", 8 << 10), ("/dev/shm", 16 << 10)] {
        let mount = mounts.get(path).unwrap_or_else(|| panic!("{path} is not mounted: {table}"));
        assert!(mount.starts_with("tmpfs ") && mount.contains(&format!("size={kb}k")), "{path}: {mount}");
    }
    assert!(!table.contains("docker.sock"), "{table}");
    for directory in ["/var/run", "/run"] {
        assert!(!world.inside(name, &["ls", directory]).await.contains("docker"), "{directory}");
    }
    const FULL: &str = "errno 28";
    for (path, mb) in [("/workspace/big", 24), ("/runtime/big", 16), ("/tmp/big", 8)] {
        let said = world.inside(name, &["fill", path]).await;
        let (bytes, error) = said.split_once(' ').expect("bytes and errno");
        let bytes: u64 = bytes.parse().expect("bytes");
        assert!((mb - 1) << 20 < bytes && bytes <= mb << 20 && error == FULL, "{path}: {said}");
    }
    let said = world.inside(name, &["inodes", "/workspace"]).await;
    let (made, error) = said.split_once(' ').expect("files and errno");
    assert!(made.parse::<u64>().expect("files") <= 8192 && error == FULL, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_and_memory_are_bounded_and_the_computer_survives_both() {
    let world = World::new().await;
    let spec = world.spec();
    world.docker.ensure(&spec).await.expect("a computer");
    let said = world.inside(&spec.name, &["forks"]).await;
    let (forks, error) = said.split_once(' ').expect("processes and errno");
    assert!(forks.parse::<u32>().expect("processes") < 32 && error == "errno 11", "{said}");
    assert_eq!(world.inside(&spec.name, &["eat", "64"]).await, "ate 64");
    assert_eq!(world.inside(&spec.name, &["eat", "400"]).await, "", "killed before it can say so");
    assert_eq!(world.inside(&spec.name, &["id"]).await, "64017 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_brings_a_volume_of_its_own_is_refused() {
    use holdfast_worker::image::context::{Entry, tar};
    use holdfast_worker::sandbox::docker::Recipe;
    let world = World::new().await;
    let image = format!("holdfast-test-volume:{}", world.installation());
    let dockerfile = format!("FROM {}\nVOLUME /data\n", world.image());
    let recipe = Recipe { name: &image, network: "none", fresh: false };
    let context = tar(vec![Entry::bytes("Dockerfile", 0o644, dockerfile)]);
    let deadline = std::time::Duration::from_secs(60);
    world.docker.engine().build_image(recipe, context, deadline, &|_| {}).await.expect("an image");
    let mut spec = world.spec();
    spec.sandbox.image = image.clone();
    let error = world.docker.ensure(&spec).await.expect_err("refused");
    assert!(matches!(&error, SandboxError::Unsatisfiable(text) if text.contains("/data")), "{error}");
    assert_eq!(world.docker.find(&spec.name).await.expect("the engine answers"), None);
    let options = bollard::query_parameters::RemoveImageOptionsBuilder::default().build();
    world.raw.remove_image(&image, Some(options), None).await.expect("removable");
}

#[tokio::test(flavor = "multi_thread")]
async fn tracing_can_be_switched_off_and_a_runtime_that_is_not_there_is_named() {
    let world = World::new().await;
    let mut spec = world.spec();
    spec.sandbox.ptrace = false;
    world.docker.ensure(&spec).await.expect("a computer");
    let tried = world.inside_as(&spec.name, "64017:64017", &["syscalls"]).await;
    assert!(tried.contains("ok_ptrace_me 1") || !cfg!(target_arch = "x86_64"), "{tried}");
    let mut spec = world.spec();
    spec.sandbox.oci_runtime = Some("runsc-not-here".to_owned());
    let error = world.docker.ensure(&spec).await.expect_err("refused");
    let text = error.to_string();
    assert!(matches!(error, SandboxError::Unsatisfiable(_)), "{text}");
    assert!(text.contains("does not offer the runtime runsc-not-here (it has ") && text.contains("runc"), "{text}");
    // The engine's own, named.
    let mut spec = world.spec();
    spec.sandbox.oci_runtime = Some("runc".to_owned());
    world.docker.ensure(&spec).await.expect("a computer");
}
