//! One declaration per metric: its doc comment is its help text, its name is its field's name behind `holdfast_`, and it
//! is registered where it is made, so that none can be forgotten. Pure construction.

use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts,
};

/// From 5 ms to an hour: a claim takes milliseconds, a turn an hour.
const SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 1800.0, 3600.0];

/// How each kind of metric is made.
pub(crate) trait Make: Collector + Clone + Sized + 'static {
    fn make(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self>;
}

macro_rules! plain {
    ($($kind:ty),*) => {$(
        impl Make for $kind {
            fn make(name: &str, help: &str, _: &[&str]) -> prometheus::Result<Self> {
                Self::with_opts(Opts::new(name, help))
            }
        }
    )*};
}
macro_rules! labelled {
    ($($kind:ty),*) => {$(
        impl Make for $kind {
            fn make(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self> {
                Self::new(Opts::new(name, help), labels)
            }
        }
    )*};
}
plain!(Counter, Gauge, IntCounter, IntGauge);
labelled!(CounterVec, GaugeVec, IntCounterVec, IntGaugeVec);

impl Make for Histogram {
    fn make(name: &str, help: &str, _: &[&str]) -> prometheus::Result<Self> {
        Self::with_opts(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()))
    }
}

impl Make for HistogramVec {
    fn make(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self> {
        Self::new(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()), labels)
    }
}

macro_rules! metrics {
    (
        $(#[$outer:meta])*
        pub struct $name:ident {
            $( $(#[doc = $help:literal])+ pub $field:ident: $kind:ty $([$($label:literal),+])?, )+
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $( $(#[doc = $help])+ pub $field: $kind, )+
        }

        impl $name {
            fn make(registry: &prometheus::Registry) -> Self {
                Self {$(
                    $field: {
                        let help = concat!($($help),+).trim();
                        let labels: &[&str] = &[$($($label),+)?];
                        let made = <$kind as $crate::telemetry::macros::Make>::make(
                            concat!("holdfast_", stringify!($field)), help, labels,
                        );
                        let metric = made.expect("names and labels are literals of the right form");
                        registry.register(Box::new(metric.clone())).expect("every field is registered once");
                        metric
                    },
                )+}
            }

            /// Names, kinds, labels and help of all metrics, for the documentation and its test.
            #[cfg(test)]
            pub(crate) fn describe() -> String {
                let mut text = String::new();
                $(
                    let labels: &[&str] = &[$($($label),+)?];
                    text += &format!(
                        "holdfast_{}{{{}}} {}\n    {}\n",
                        stringify!($field), labels.join(","), stringify!($kind), concat!($($help),+).trim(),
                    );
                )+
                text
            }
        }
    };
}
