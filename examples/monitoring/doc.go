// Package monitoring has what a Prometheus and a Grafana need for relays: a configuration, alerts, a dashboard. They
// are files; the tests run them.
package monitoring
