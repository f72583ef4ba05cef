// Closed-loop load on a loopback port: CONNECTIONS keep-alive connections, one request at a time on each.
//
// usage: client PORT CONNECTIONS SECONDS STREAM BODY_BYTES DISTINCT MODEL
//
// Chat bodies of BODY_BYTES bytes, DISTINCT different ones in turn. Requests under way at the end are finished. Prints one
// JSON line: requests, events, errors (broken connections), refused (not 200), latencies of requests, of first events and
// of all events from their "ts" stamps, in microseconds.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES 65536
#define GRACE_NS 20000000000u

typedef struct {
  int fd;
  char *data;
  size_t length, capacity, head, scanned;
  long body;  // content-length, -1 = chunked
  const char *unsent;
  size_t unsent_length;
  uint64_t begun;
  int answered;
} Connection;

typedef struct {
  double *values;
  size_t count, capacity;
} Samples;

static Samples latency, first_event, event_delay;
static size_t broken, refused;
static char **requests;
static size_t *lengths;
static int distinct, turn, port, poller, streams;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void record(Samples *s, double value) {
  if (s->count == s->capacity) {
    s->capacity = s->capacity * 2 + 1024;
    s->values = realloc(s->values, s->capacity * sizeof *s->values);
  }
  s->values[s->count++] = value;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double percentile(Samples *s, double share) {
  return s->count ? s->values[(size_t)((double)(s->count - 1) * share)] : 0.0;
}

static void make_requests(size_t body_bytes, const char *model) {
  static const char *WORDS[] = {"alpha ", "lorem ", "ipsum ", "kernel ", "graph ",
                                "node ",  "token ", "cache ", "prefix ", "router "};
  requests = calloc((size_t)distinct, sizeof *requests);
  lengths = calloc((size_t)distinct, sizeof *lengths);
  char *body = malloc(body_bytes + 4096);
  for (int i = 0; i < distinct; i++) {
    unsigned seed = 12345u + (unsigned)i * 7919u;
    int n = sprintf(body,
                    "{\"model\":\"%s\",\"max_tokens\":64,\"temperature\":0,%s\"messages\":[{\"role\":\"user\",\"content\":\"",
                    model, streams ? "\"stream\":true," : "");
    while ((size_t)n + 12 < body_bytes) {
      seed = seed * 1103515245u + 12345u;
      n += sprintf(body + n, "%s", WORDS[(seed >> 16) % 10]);
    }
    n += sprintf(body + n, "\"}]}");
    requests[i] = malloc((size_t)n + 512);
    int head = sprintf(requests[i],
                       "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                       "Authorization: Bearer sk-1234\r\nContent-Length: %d\r\n\r\n",
                       port, n);
    memcpy(requests[i] + head, body, (size_t)n);
    lengths[i] = (size_t)(head + n);
  }
  free(body);
}

static int open_connection(Connection *c) {
  int one = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(c->fd, (void *)&address, sizeof address)) return -1;
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(c->fd, F_SETFL, O_NONBLOCK);
  struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = c};
  return epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &wanted);
}

static void push(Connection *c) {
  while (c->unsent_length) {
    ssize_t n = write(c->fd, c->unsent, c->unsent_length);
    if (n < 0) break;
    c->unsent += n;
    c->unsent_length -= (size_t)n;
  }
  struct epoll_event wanted = {.events = EPOLLIN | (c->unsent_length ? EPOLLOUT : 0u), .data.ptr = c};
  epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &wanted);
}

static void ask(Connection *c) {
  int i = turn++ % distinct;
  c->length = c->head = c->scanned = 0;
  c->answered = 0;
  c->unsent = requests[i];
  c->unsent_length = lengths[i];
  c->begun = now_ns();
  push(c);
}

static void read_head(Connection *c) {
  char *end = memmem(c->data, c->length, "\r\n\r\n", 4);
  if (!end) return;
  *end = 0;
  c->head = (size_t)(end - c->data) + 4;
  c->scanned = c->head;
  if (strncmp(c->data + 9, "200", 3)) {
    if (!refused++) fprintf(stderr, "refused: %.300s\n%.300s\n", c->data, end + 4);
  }
  char *field = strcasestr(c->data, "\r\ncontent-length:");
  c->body = field ? strtol(field + 17, NULL, 10) : -1;
  *end = '\r';
}

static void read_events(Connection *c, uint64_t now) {
  char *at = c->data + c->scanned, *stamp;
  while ((stamp = memmem(at, (size_t)(c->data + c->length - at), "\"ts\":", 5)) && stamp + 25 <= c->data + c->length) {
    uint64_t sent = strtoull(stamp + 6, NULL, 10);  // after the leading 1 that keeps the width
    if (!c->answered++) record(&first_event, (double)(now - c->begun) / 1e3);
    record(&event_delay, (double)(now - sent) / 1e3);
    at = stamp + 25;
  }
  c->scanned = (size_t)(at - c->data);
}

// 1 when the answer is complete, -1 when the connection broke.
static int receive(Connection *c) {
  if (c->capacity - c->length < READ_BYTES + 1) {
    c->capacity = c->capacity * 2 + 2 * READ_BYTES;
    c->data = realloc(c->data, c->capacity);
  }
  ssize_t n = read(c->fd, c->data + c->length, READ_BYTES);
  if (n <= 0) return n < 0 && errno == EAGAIN ? 0 : -1;
  c->length += (size_t)n;
  c->data[c->length] = 0;
  if (!c->head) read_head(c);
  if (!c->head) return 0;
  if (streams) read_events(c, now_ns());
  if (c->body < 0) return c->length >= 5 && !memcmp(c->data + c->length - 5, "0\r\n\r\n", 5);
  return c->length - c->head >= (size_t)c->body;
}

int main(int argc, char **argv) {
  if (argc != 8) {
    fprintf(stderr, "usage: client PORT CONNECTIONS SECONDS STREAM BODY_BYTES DISTINCT MODEL\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  port = atoi(argv[1]);
  int count = atoi(argv[2]), busy = count;
  streams = atoi(argv[4]);
  distinct = atoi(argv[6]);
  make_requests((size_t)atol(argv[5]), argv[7]);
  poller = epoll_create1(0);
  Connection *connections = calloc((size_t)count, sizeof *connections);
  for (int i = 0; i < count; i++) {
    if (open_connection(&connections[i])) {
      perror("client");
      return 1;
    }
  }
  uint64_t start = now_ns(), end = start + (uint64_t)(atof(argv[3]) * 1e9);
  for (int i = 0; i < count; i++) ask(&connections[i]);
  struct epoll_event ready[256];
  while (busy > 0 && now_ns() < end + GRACE_NS) {
    int got = epoll_wait(poller, ready, 256, 500);
    int stopping = now_ns() >= end;
    for (int i = 0; i < got; i++) {
      Connection *c = ready[i].data.ptr;
      if (ready[i].events & EPOLLOUT) push(c);
      int over = ready[i].events & ~EPOLLOUT ? receive(c) : 0;
      if (over > 0) record(&latency, (double)(now_ns() - c->begun) / 1e3);
      if (over < 0) {
        broken++;
        close(c->fd);
        if (stopping || open_connection(c)) {
          busy--;
          continue;
        }
      }
      if (over && stopping) busy--, close(c->fd);
      else if (over) ask(c);
    }
  }
  Samples *all[] = {&latency, &first_event, &event_delay};
  for (int i = 0; i < 3; i++) qsort(all[i]->values, all[i]->count, sizeof(double), ascending);
  printf("{\"requests\":%zu,\"events\":%zu,\"broken\":%zu,\"refused\":%zu,\"unfinished\":%d,\"seconds\":%.3f,"
         "\"latency_us\":[%.0f,%.0f],\"first_event_us\":[%.0f,%.0f],\"event_delay_us\":[%.0f,%.0f]}\n",
         latency.count, event_delay.count, broken, refused, busy, (double)(now_ns() - start) / 1e9,
         percentile(&latency, 0.5), percentile(&latency, 0.99), percentile(&first_event, 0.5),
         percentile(&first_event, 0.99), percentile(&event_delay, 0.5), percentile(&event_delay, 0.99));
  return 0;
}
