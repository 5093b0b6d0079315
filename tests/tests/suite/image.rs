//! Building sandbox images on the real engine: reuse, replacement, refusals, leftovers; and, when asked for, the whole
//! image from the public package sources.
//!
//! Images of these tests carry a tag of their own and are removed; layers of the whole image stay, they are the cache.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use bollard::query_parameters::{InspectContainerOptions, RemoveImageOptionsBuilder};
use futures_util::{StreamExt, stream};
use holdfast_protocol::message::{Answer, Call};
use holdfast_protocol::{Fence, PROTOCOL_VERSION};
use holdfast_shared::domain::sandbox::SandboxSpec;
use holdfast_worker::channel::Channel;
use holdfast_worker::image::context::{Entry, tar};
use holdfast_worker::image::{self, Base, BuiltImage, Harness, ImageError, Options, Progress};
use holdfast_worker::sandbox::Sandbox;
use holdfast_worker::sandbox::docker::Recipe;

use crate::sandbox::support::{World, compile_probe};

struct Place {
    directory: tempfile::TempDir,
    world: World,
    options: Options,
}

impl Place {
    /// A build on the probe's image, with the probe as the runtime: seconds, and no network.
    async fn new() -> Self {
        let world = World::new().await;
        let directory = tempfile::tempdir().expect("a directory");
        // No two tests build the same image: the engine would share the layers between them.
        let runtime = [compile_probe(directory.path()), world.installation().into()].concat();
        std::fs::write(directory.path().join("probe"), runtime).expect("a runtime");
        let options = Options {
            tag: format!("holdfast-test-image:{}", world.installation()),
            base: Base::Image(world.image().to_owned()),
            harness: Harness::Scripted,
            ..Options::new(directory.path().join("probe"), directory.path().join("cache"))
        };
        Self { directory, world, options }
    }

    async fn build(&self) -> Result<BuiltImage, ImageError> {
        image::build(&self.options, &|_| {}).await
    }

    async fn remove(self) {
        let options = RemoveImageOptionsBuilder::default().build();
        self.world.raw.remove_image(&self.options.tag, Some(options), None).await.expect("removable");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_is_named_reused_and_replaced() {
    let place = Place::new().await;
    let engine = place.world.docker.engine();
    let steps = Mutex::new(Vec::new());
    let progress = |progress| {
        if let Progress::Done { step, reused, .. } = progress {
            steps.lock().expect("never poisoned").push((step, reused));
        }
    };
    let first = image::build(&place.options, &progress).await.expect("built");
    assert_eq!(*steps.lock().expect("never poisoned"), [("base", true), ("runtime", false)]);
    let stored = engine.image(&place.options.tag).await.expect("the engine answers").expect("named");
    assert_eq!(stored.id, first.id);
    assert_eq!(stored.labels.get("holdfast.image.runtime.sha256"), Some(&first.runtime_sha256));
    let again = image::build(&place.options, &progress).await.expect("built again");
    assert_eq!(again.id, first.id, "equal inputs are the same image");
    assert_eq!(steps.lock().expect("never poisoned")[2..], [("base", true), ("runtime", true)]);

    // A computer runs the very image, whatever becomes of its name.
    let mut spec = place.world.spec();
    spec.sandbox.image = place.options.tag.clone();
    place.world.docker.ensure(&spec).await.expect("a computer");
    let runtime = std::fs::read(&place.options.runtime).expect("the probe");
    std::fs::write(&place.options.runtime, [runtime.as_slice(), b"newer"].concat()).expect("another runtime");
    let newer = place.build().await.expect("built with another runtime");
    assert_ne!(newer.id, first.id);
    assert_ne!(newer.runtime_sha256, first.runtime_sha256);
    let inspected = place.world.raw.inspect_container(&spec.name, None::<InspectContainerOptions>).await;
    assert_eq!(inspected.expect("inspect").image, Some(first.id.clone()));
    // It stayed because the computer used it.
    place.world.docker.destroy(&spec.name).await.expect("gone");
    engine.forget_unnamed_image(&first.id).await;
    assert_eq!(engine.image(&first.id).await.expect("the engine answers"), None);
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_lost_its_name_is_removed_and_one_with_another_name_is_not() {
    let place = Place::new().await;
    let engine = place.world.docker.engine();
    let first = place.build().await.expect("built");
    let kept = format!("{}-kept", place.options.tag);
    for (ending, name_kept) in [("a", false), ("b", true)] {
        let before = place.build().await.expect("as it is");
        if name_kept {
            engine.tag_image(&before.id, &kept).await.expect("named");
        }
        let runtime = std::fs::read(&place.options.runtime).expect("the probe");
        std::fs::write(&place.options.runtime, [runtime.as_slice(), ending.as_bytes()].concat()).expect("changed");
        place.build().await.expect("replaced");
        assert_eq!(engine.image(&before.id).await.expect("the engine answers").is_some(), name_kept, "{ending}");
    }
    assert_eq!(engine.image(&first.id).await.expect("the engine answers"), None);
    let options = RemoveImageOptionsBuilder::default().build();
    place.world.raw.remove_image(&kept, Some(options), None).await.expect("removable");
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_built_says_why_and_leaves_no_name() {
    let mut place = Place::new().await;
    place.options.runtime = std::env::current_exe().expect("this test");
    let error = place.build().await.expect_err("a dynamic runtime").to_string();
    assert!(error.starts_with("runtime: ") && error.contains("crt-static"), "{error}");
    place.options.runtime = PathBuf::from("/etc/passwd");
    let error = place.build().await.expect_err("no program").to_string();
    assert!(error.contains("ELF"), "{error}");
    place.options.runtime = place.directory.path().join("absent");
    let error = place.build().await.expect_err("no file").to_string();
    assert!(error.contains("absent"), "{error}");
    place.options.base = Base::Image("holdfast-test-none:missing".to_owned());
    let error = place.build().await.expect_err("no base").to_string();
    assert!(error.starts_with("base: ") && error.contains("holdfast-test-none:missing"), "{error}");
    assert_eq!(place.world.docker.engine().image(&place.options.tag).await.expect("the engine answers"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn builds_share_a_cache_one_after_the_other_and_clear_what_died() {
    let place = Place::new().await;
    let left = place.options.cache.join("tmp-of-a-dead-build/root/deep");
    std::fs::create_dir_all(&left).expect("a leftover");
    let kept = place.options.cache.join("wheel-that-is-kept.whl");
    std::fs::write(&kept, "kept").expect("a download");
    let (first, second) = tokio::join!(place.build(), place.build());
    assert_eq!(first.expect("built").id, second.expect("built").id);
    assert!(!place.options.cache.join("tmp-of-a-dead-build").exists());
    assert!(kept.exists());
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cut_off_leaves_no_name() {
    let world = World::new().await;
    let engine = world.docker.engine();
    let name = format!("holdfast-test-cut:{}", world.installation());
    let deadline = Duration::from_secs(60);
    let whole: Vec<_> = tar(vec![Entry::bytes("file", 0o644, vec![7; 4 << 20])]).collect().await;
    let half = whole.len() / 2;
    assert!(half > 1, "the tar comes in pieces");
    let first: Vec<_> = whole.into_iter().take(half).map(|piece| piece.expect("a piece")).collect();
    let broken = stream::iter([Err(std::io::Error::other("cut"))]);
    let cut = stream::iter(first.clone()).map(Ok).chain(broken).boxed();
    engine.import_image(&name, &[], cut, deadline).await.expect_err("a cut import");
    assert_eq!(engine.image(&name).await.expect("the engine answers"), None);
    // The sender goes silent and is gone.
    let silent = stream::iter(first).map(Ok).chain(stream::pending()).boxed();
    engine.import_image(&name, &[], silent, Duration::from_millis(500)).await.expect_err("an import without an end");
    assert_eq!(engine.image(&name).await.expect("the engine answers"), None);
    let recipe = Recipe { name: &name, network: "none", fresh: false };
    let dockerfile = format!("FROM {}\nCOPY absent /absent\n", world.image());
    let context = tar(vec![Entry::bytes("Dockerfile", 0o644, dockerfile)]);
    let error = engine.build_image(recipe, context, deadline, &|_| {}).await.expect_err("a step that fails");
    assert!(format!("{:#}", anyhow::Error::new(error)).contains("absent"));
    assert_eq!(engine.image(&name).await.expect("the engine answers"), None);
}

/// `HOLDFAST_TEST_IMAGE_CACHE` names a directory for the downloads, `HOLDFAST_TEST_RUNTIME` the static runtime.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_image_works_inside_the_lockdown() {
    let setting = |name: &str| PathBuf::from(holdfast_tests::services::env(name));
    let world = World::new().await;
    let mut options = Options::new(setting("HOLDFAST_TEST_RUNTIME"), setting("HOLDFAST_TEST_IMAGE_CACHE"));
    options.tag = format!("holdfast-test-image:{}", world.installation());
    let progress = |progress| match progress {
        Progress::Done { step, took, reused } => println!("{step} {:.1} s reused {reused}", took.as_secs_f64()),
        Progress::Note { step, line } => println!("  {step}: {line}"),
    };
    let built = image::build(&options, &progress).await.expect("built");
    println!("{built:?}");
    let again = image::build(&options, &progress).await.expect("built again");
    println!("again in {:.2} s", again.took.as_secs_f64());
    assert_eq!(again.id, built.id);

    let mut spec = world.spec();
    spec.sandbox = SandboxSpec { image: options.tag.clone(), ..SandboxSpec::default() };
    world.docker.ensure(&spec).await.expect("a computer");
    let channel = Channel::new(world.docker.open(&spec.name).await.expect("a stream"), Fence::granted(1));
    let hello = Call::Hello { protocol: PROTOCOL_VERSION, ttl_ms: 60_000 };
    let answer = channel.call(hello, Duration::from_secs(10)).await.expect("the runtime answers");
    assert!(matches!(&answer, Answer::Hello(status) if status.blank), "{answer:?}");
    let shell = |script: &'static str| {
        let (world, name) = (&world, spec.name.clone());
        async move { world.run_as(&name, "64017:64017", vec!["/bin/bash".into(), "-c".into(), script.into()]).await }
    };
    assert_eq!(shell("id -un; id -gn; pwd").await, "agent\nagent\n/workspace");
    assert!(shell("claude --version").await.contains("Claude Code"));
    assert_eq!(shell("codex --version").await, "codex-cli 0.163.0");
    assert!(shell("cd /opt/codex && ls bin codex-path").await.contains("codex-code-mode-host"));
    let python = "python3 -c 'import concurrent.futures as c; print(sum(c.ProcessPoolExecutor(2).map(abs, range(9))))'";
    assert_eq!(shell(python).await, "36");
    let git = "cd /workspace && git init -q && git config user.email a@b.c && git config user.name n && echo hi > f \
               && git add f && git commit -qm one && git status --short && git log --oneline | wc -l";
    assert_eq!(shell(git).await, "1");
    for tool in ["rg", "jq", "curl", "make", "patch", "ps", "less", "file", "unzip", "xz", "diff", "find"] {
        assert_eq!(shell_tool(&world, &spec.name, tool).await, tool, "{tool}");
    }
    world.docker.destroy(&spec.name).await.expect("gone");
    let options = RemoveImageOptionsBuilder::default().build();
    world.raw.remove_image(&built.tag, Some(options), None).await.expect("removable");
}

async fn shell_tool(world: &World, name: &str, tool: &str) -> String {
    let found = world.run_as(name, "64017:64017", vec!["/bin/bash".into(), "-c".into(), format!("command -v {tool}")]);
    found.await.rsplit('/').next().unwrap_or_default().to_owned()
}
