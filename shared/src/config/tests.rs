//! Which layer wins, and what a person reads when a setting is wrong.

use super::*;

fn load(env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Result<Config, String> {
    let env: BTreeMap<String, String> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let flags = flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
    Config::from_layers(&|name| env.get(name).cloned(), &flags).map_err(|e| e.to_string())
}

#[test]
fn the_later_layer_wins() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), "slots = 3\nqueue = \"file\"\nnamespace = \"team\"\n").expect("writable");
    let path = file.path().to_str().expect("a plain path");
    let config = load(&[("HOLDFAST_CONFIG", path), ("HOLDFAST_QUEUE", "123")], &[]).expect("right");
    assert_eq!((config.slots, config.queue.as_str(), config.namespace.as_str()), (3, "123", "team"));
    let config = load(&[("HOLDFAST_CONFIG", path), ("HOLDFAST_SLOTS", "4")], &[("slots", "5")]).expect("right");
    assert_eq!(config.slots, 5);
    assert_eq!(config.lease_ttl, Span::secs(60));
    std::fs::write(file.path(), "slotz = 3\n").expect("writable");
    let error = load(&[("HOLDFAST_CONFIG", path)], &[]).expect_err("unknown key");
    assert!(error.ends_with("unknown setting `slotz`; did you mean `slots`?"), "{error}");
}

#[test]
fn wrong_settings_name_themselves() {
    let cases = [
        ("DATABASE_URL", "sqlite://local.db"),
        ("DATABASE_URL", "mysql://root:secret@db/x"),
        ("DATABASE_URL", "secret"),
        ("AMQP_URL", "http://broker"),
        ("HOLDFAST_SLOTS", "many"),
        ("HOLDFAST_SLOTS", "0"),
        ("HOLDFAST_LEASE_TTL", "soon"),
        ("HOLDFAST_METRICS_ADDR", "9464"),
        ("HOLDFAST_NAMESPACE", "A b"),
        ("HOLDFAST_CONFIG", "/nowhere/holdfast.toml"),
    ];
    let texts = cases.map(|(name, value)| load(&[(name, value)], &[]).map(|_| ()).expect_err(name));
    insta::assert_snapshot!("wrong_settings", texts.join("\n"));
}

#[test]
fn passwords_are_never_shown() {
    let cases = [
        ("postgres://me:p@ss@db:5432/x?password=hidden", "postgres://me@db:5432/x"),
        ("amqp://guest:guest@127.0.0.1:5672/%2f", "amqp://guest@127.0.0.1:5672/%2f"),
        ("postgres:///x?host=/run", "postgres:///x"),
        ("secret", "[no url]"),
    ];
    for (url, shown) in cases {
        assert_eq!(format!("{:?} {}", ServiceUrl::from(url), ServiceUrl::from(url)), format!("{shown} {shown}"));
    }
}

#[test]
fn each_variable_is_declared_once() {
    for (index, var) in VARS.iter().enumerate() {
        assert!(VARS[..index].iter().all(|other| other.name != var.name && other.key != var.key), "{}", var.name);
        assert!(!var.meaning.is_empty());
    }
}
